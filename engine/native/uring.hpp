// Reads pages with io_uring through its three system calls: no library is needed, and nothing of the ring is exotic
// (registered file and buffers when the kernel grants them).
#pragma once

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <vector>

#include "device.hpp"

namespace sparkyard {

class Mapping {
 public:
  Mapping(size_t size, int protection, int flags, int fd, off_t offset)
      : size_(size), at_(::mmap(nullptr, size, protection, flags, fd, offset)) {
    if (at_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  }
  ~Mapping() { ::munmap(at_, size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  uint8_t* bytes() const { return static_cast<uint8_t*>(at_); }

 private:
  size_t size_;
  void* at_;
};

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

class Uring final : public Device {
 public:
  // Throws std::system_error where the kernel or a seccomp profile denies io_uring.
  Uring(int file, unsigned depth)
      : params_(), ring_(setup(depth, params_)), depth_(depth), file_(file),
        buffers_(depth * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0),
        submissions_(params_.sq_off.array + params_.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_POPULATE, ring_.get(), IORING_OFF_SQ_RING),
        completions_(params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_POPULATE, ring_.get(), IORING_OFF_CQ_RING),
        entries_(params_.sq_entries * sizeof(io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                 ring_.get(), IORING_OFF_SQES),
        slots_(depth) {
    fixed_file_ = control(IORING_REGISTER_FILES, &file_, 1) == 0;
    const iovec whole{buffers_.bytes(), depth * kPageBytes};
    fixed_buffer_ = control(IORING_REGISTER_BUFFERS, &whole, 1) == 0;  // denied when locked memory is short
  }

  void read(const PageRead* reads, uint64_t count, Sink& sink) override {
    if (count == 0) return;
    if (broken_) return sink.fail(reads[0], EIO);
    std::vector<unsigned>& spare = spare_;
    spare.clear();
    for (unsigned slot = depth_; slot-- > 0;) spare.push_back(slot);
    uint64_t next = 0;
    unsigned flying = 0;
    bool stopped = false;
    while (flying > 0 || (next < count && !stopped)) {
      unsigned fresh = 0;
      for (; next < count && !stopped && !spare.empty(); ++next, ++fresh) {
        const unsigned slot = spare.back();
        spare.pop_back();
        slots_[slot] = {&reads[next], 0};
        queue(slot);
      }
      flying += fresh;
      // Wait for several at a time: one system call then serves many pages, and the queue never runs dry.
      const unsigned wanted = std::clamp(flying / 2, 1u, kReap);
      const int entered = enter(fresh, wanted);
      if (entered < 0) {  // a broken ring cannot be drained, its buffers cannot be used again: end here
        sink.fail(reads[0], -entered);
        broken_ = true;
        return;
      }
      reap(spare, flying, stopped, sink);
    }
  }

 private:
  struct Slot {
    const PageRead* read;
    int retries;
  };
  static constexpr unsigned kReap = 16;

  static int setup(unsigned depth, io_uring_params& params) {
    params.flags = IORING_SETUP_CLAMP;
    const long fd = ::syscall(__NR_io_uring_setup, depth, &params);
    if (fd < 0) throw std::system_error(errno, std::generic_category(), "io_uring_setup");
    return static_cast<int>(fd);
  }

  int control(unsigned what, const void* argument, unsigned count) {
    return static_cast<int>(::syscall(__NR_io_uring_register, ring_.get(), what, argument, count));
  }

  std::atomic<unsigned>* word(const Mapping& mapping, unsigned offset) {
    return reinterpret_cast<std::atomic<unsigned>*>(mapping.bytes() + offset);
  }

  void queue(unsigned slot) {
    auto* tail = word(submissions_, params_.sq_off.tail);
    const unsigned mask = word(submissions_, params_.sq_off.ring_mask)->load(std::memory_order_relaxed);
    const unsigned at = tail->load(std::memory_order_relaxed);
    auto& entry = reinterpret_cast<io_uring_sqe*>(entries_.bytes())[at & mask];
    std::memset(&entry, 0, sizeof(entry));
    entry.opcode = fixed_buffer_ ? IORING_OP_READ_FIXED : IORING_OP_READ;
    entry.flags = fixed_file_ ? IOSQE_FIXED_FILE : 0;
    entry.fd = fixed_file_ ? 0 : file_;
    entry.addr = reinterpret_cast<uint64_t>(buffers_.bytes() + slot * kPageBytes);
    entry.len = kPageBytes;
    entry.off = slots_[slot].read->page * kPageBytes;
    entry.user_data = slot;
    reinterpret_cast<unsigned*>(submissions_.bytes() + params_.sq_off.array)[at & mask] = at & mask;
    tail->store(at + 1, std::memory_order_release);
  }

  // Submits everything queued and waits; 0, or a negative errno that no retry cures.
  int enter(unsigned fresh, unsigned wanted) {
    auto* head = word(completions_, params_.cq_off.head);
    auto* tail = word(completions_, params_.cq_off.tail);
    while (true) {
      const long got = ::syscall(__NR_io_uring_enter, ring_.get(), fresh, wanted, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (got < 0) {
        if (errno != EINTR && errno != EAGAIN && errno != EBUSY) return -errno;
        if (tail->load(std::memory_order_acquire) != head->load(std::memory_order_relaxed)) wanted = 0;
        continue;
      }
      fresh -= std::min(fresh, static_cast<unsigned>(got));
      if (fresh == 0) return 0;
    }
  }

  void reap(std::vector<unsigned>& spare, unsigned& flying, bool& stopped, Sink& sink) {
    auto* head = word(completions_, params_.cq_off.head);
    const unsigned mask = word(completions_, params_.cq_off.ring_mask)->load(std::memory_order_relaxed);
    const auto* entries = reinterpret_cast<const io_uring_cqe*>(completions_.bytes() + params_.cq_off.cqes);
    unsigned at = head->load(std::memory_order_relaxed);
    const unsigned end = word(completions_, params_.cq_off.tail)->load(std::memory_order_acquire);
    unsigned again = 0;
    for (; at != end; ++at) {
      const io_uring_cqe& entry = entries[at & mask];
      const auto slot = static_cast<unsigned>(entry.user_data);
      const int result = entry.res;
      const PageRead& read = *slots_[slot].read;
      if ((result == -EINTR || result == -EAGAIN) && !stopped && slots_[slot].retries++ < kRetries) {
        queue(slot);
        ++again;
        continue;
      }
      if (result != static_cast<int>(kPageBytes)) {
        if (!stopped) sink.fail(read, result < 0 ? -result : 0);
        stopped = true;
      } else if (!stopped && !sink.take(read, buffers_.bytes() + slot * kPageBytes)) {
        stopped = true;
      }
      spare.push_back(slot);
      --flying;
    }
    head->store(end, std::memory_order_release);
    if (again > 0) enter(again, 0);
  }

  io_uring_params params_;
  Descriptor ring_;
  unsigned depth_;
  int file_;
  Mapping buffers_;
  Mapping submissions_;
  Mapping completions_;
  Mapping entries_;
  std::vector<Slot> slots_;
  std::vector<unsigned> spare_;
  bool fixed_file_ = false;
  bool fixed_buffer_ = false;
  bool broken_ = false;
};

}  // namespace sparkyard
