// The other ways to read rows, for comparison: a bare io_uring loop (no checks, no copies), the published design of 96
// blocking threads over packed contiguous rows, and two reads a row on the raw tensors.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr uint64_t kPage = 4096;

struct Ring {
  int fd;
  io_uring_params params = {};
  uint8_t *sq, *cq;
  io_uring_sqe* sqes;
  uint8_t* buffers;
  unsigned depth;
};

template <typename T>
T* at(uint8_t* base, unsigned offset) {
  return reinterpret_cast<T*>(base + offset);
}

// A pool in which each id is one ticket, as the published store has it.
class Tickets {
 public:
  explicit Tickets(unsigned threads) {
    for (unsigned number = 0; number < threads; ++number) threads_.emplace_back([this] { serve(); });
  }
  ~Tickets() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  template <typename Work>
  void run(uint64_t count, Work&& work) {
    body_ = [](void* context, uint64_t ticket) { (*static_cast<std::remove_reference_t<Work>*>(context))(ticket); };
    context_ = &work;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      next_ = 0;
      count_ = count;
      ++round_;
      open_ = true;
    }
    if (count >= 8) wake_.notify_all();
    drain();
    std::unique_lock<std::mutex> lock(mutex_);
    open_ = false;
    idle_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void serve() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return ending_ || (open_ && round_ != seen); });
      if (ending_) return;
      seen = round_;
      ++busy_;
      lock.unlock();
      drain();
      lock.lock();
      if (--busy_ == 0) idle_.notify_all();
    }
  }
  void drain() {
    for (uint64_t ticket = next_++; ticket < count_; ticket = next_++) body_(context_, ticket);
  }
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::atomic<uint64_t> next_{0};
  uint64_t count_ = 0, round_ = 0;
  void (*body_)(void*, uint64_t) = nullptr;
  void* context_ = nullptr;
  unsigned busy_ = 0;
  bool open_ = false, ending_ = false;
};

// Reads [offset, offset + size) through whole aligned pages into an aligned stack buffer.
bool read_span(int file, uint64_t offset, uint64_t size, uint8_t* out) {
  alignas(4096) uint8_t buffer[2 * kPage];
  const uint64_t low = offset / kPage * kPage;
  const uint64_t high = (offset + size + kPage - 1) / kPage * kPage;
  if (::pread(file, buffer, high - low, static_cast<off_t>(low)) < static_cast<ssize_t>(offset + size - low)) return false;
  std::memcpy(out, buffer + (offset - low), size);
  return true;
}

}  // namespace

EXPORT void* bare_open(unsigned depth) {
  auto* ring = new Ring();
  ring->depth = depth;
  ring->fd = static_cast<int>(::syscall(__NR_io_uring_setup, depth, &ring->params));
  if (ring->fd < 0) {
    delete ring;
    return nullptr;
  }
  const auto& p = ring->params;
  auto map = [&](size_t size, off_t what) {
    return static_cast<uint8_t*>(
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, what));
  };
  ring->sq = map(p.sq_off.array + p.sq_entries * 4, IORING_OFF_SQ_RING);
  ring->cq = map(p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
  ring->sqes = reinterpret_cast<io_uring_sqe*>(map(p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
  ring->buffers = static_cast<uint8_t*>(std::aligned_alloc(kPage, depth * kPage));
  return ring;
}

// Submits all pages at once and waits for all: the least that a batch of reads can take. 0, or −1 on any failed read.
EXPORT int bare_read(void* opaque, int file, const uint64_t* pages, uint64_t count) {
  auto* ring = static_cast<Ring*>(opaque);
  const auto& p = ring->params;
  for (uint64_t first = 0; first < count; first += ring->depth) {
    const auto part = static_cast<unsigned>(std::min<uint64_t>(ring->depth, count - first));
    auto* tail = at<std::atomic<unsigned>>(ring->sq, p.sq_off.tail);
    const unsigned mask = *at<unsigned>(ring->sq, p.sq_off.ring_mask);
    unsigned place = tail->load();
    for (unsigned number = 0; number < part; ++number, ++place) {
      io_uring_sqe& entry = ring->sqes[place & mask];
      std::memset(&entry, 0, sizeof(entry));
      entry.opcode = IORING_OP_READ;
      entry.fd = file;
      entry.addr = reinterpret_cast<uint64_t>(ring->buffers + number * kPage);
      entry.len = kPage;
      entry.off = pages[first + number] * kPage;
      at<unsigned>(ring->sq, p.sq_off.array)[place & mask] = place & mask;
    }
    tail->store(place);
    unsigned submit = part, done = 0;
    bool good = true;
    while (done < part) {
      const long got = ::syscall(__NR_io_uring_enter, ring->fd, submit, part - done, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (got < 0 && errno != EINTR && errno != EAGAIN) return -1;
      if (got > 0) submit -= static_cast<unsigned>(got);
      auto* head = at<std::atomic<unsigned>>(ring->cq, p.cq_off.head);
      const unsigned end = at<std::atomic<unsigned>>(ring->cq, p.cq_off.tail)->load();
      const unsigned cq_mask = *at<unsigned>(ring->cq, p.cq_off.ring_mask);
      for (unsigned seen = head->load(); seen != end; ++seen, ++done)
        good &= at<io_uring_cqe>(ring->cq, p.cq_off.cqes)[seen & cq_mask].res == static_cast<int>(kPage);
      head->store(end);
    }
    if (!good) return -1;
  }
  return 0;
}

EXPORT void* tickets_open(unsigned threads) { return new Tickets(threads); }
EXPORT void tickets_close(void* tickets) { delete static_cast<Tickets*>(tickets); }

// Packed contiguous rows of 264 bytes, one id a ticket, no de-duplication. Returns failed reads.
EXPORT uint64_t packed_read(void* tickets, int file, const int64_t* ids, uint64_t count, uint8_t* weight, uint8_t* scale) {
  std::atomic<uint64_t> failed{0};
  static_cast<Tickets*>(tickets)->run(count, [&](uint64_t ticket) {
    uint8_t row[264];
    if (!read_span(file, static_cast<uint64_t>(ids[ticket]) * 264, 264, row)) ++failed;
    std::memcpy(weight + ticket * 256, row, 256);
    std::memcpy(scale + ticket * 8, row + 256, 8);
  });
  return failed;
}

// Two reads a row on the raw tensors.
EXPORT uint64_t raw_read(void* tickets, int file, uint64_t weight_at, uint64_t scale_at, const int64_t* ids, uint64_t count,
                         uint8_t* weight, uint8_t* scale) {
  std::atomic<uint64_t> failed{0};
  static_cast<Tickets*>(tickets)->run(count, [&](uint64_t ticket) {
    const auto id = static_cast<uint64_t>(ids[ticket]);
    if (!read_span(file, weight_at + id * 256, 256, weight + ticket * 256)) ++failed;
    if (!read_span(file, scale_at + id * 8, 8, scale + ticket * 8)) ++failed;
  });
  return failed;
}
