// Reads pages with blocking reads on a bounded number of threads, for machines where io_uring is denied.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "device.hpp"

namespace sparkyard {

class Pool final : public Device {
 public:
  Pool(int file, unsigned threads) : file_(file) {
    for (unsigned number = 0; number < threads; ++number) threads_.emplace_back([this] { serve(); });
  }

  ~Pool() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void read(const PageRead* reads, uint64_t count, Sink& sink) override {
    Work work{reads, count, sink};
    if (count > kSerial) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        work_ = &work;
        ++round_;
      }
      wake_.notify_all();
    }
    run(work);
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = nullptr;
    idle_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  struct Work {
    const PageRead* reads;
    uint64_t count;
    Sink& sink;
    std::atomic<uint64_t> next{0};
    std::atomic<bool> stopped{false};
  };
  static constexpr uint64_t kSerial = 4;  // so few reads are over before a thread is awake

  void serve() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return ending_ || (work_ != nullptr && round_ != seen); });
      if (ending_) return;
      Work& work = *work_;
      seen = round_;
      ++busy_;
      lock.unlock();
      run(work);
      lock.lock();
      if (--busy_ == 0) idle_.notify_all();
    }
  }

  void run(Work& work) {
    alignas(kPageBytes) uint8_t page[kPageBytes];
    while (!work.stopped.load(std::memory_order_relaxed)) {
      const uint64_t at = work.next.fetch_add(1, std::memory_order_relaxed);
      if (at >= work.count) return;
      const PageRead& read = work.reads[at];
      ssize_t got = -1;
      for (int attempt = 0; attempt <= kRetries; ++attempt) {
        got = ::pread(file_, page, kPageBytes, static_cast<off_t>(read.page * kPageBytes));
        if (got >= 0 || (errno != EINTR && errno != EAGAIN)) break;
      }
      if (got != static_cast<ssize_t>(kPageBytes)) {
        if (!work.stopped.exchange(true)) work.sink.fail(read, got < 0 ? errno : 0);
      } else if (!work.sink.take(read, page)) {
        work.stopped.store(true);
      }
    }
  }

  int file_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  Work* work_ = nullptr;
  uint64_t round_ = 0;
  unsigned busy_ = 0;
  bool ending_ = false;
};

}  // namespace sparkyard
