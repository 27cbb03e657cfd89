// Two ways to read many pages of one file: io_uring, and a bounded pool of threads. Both call `Sink` once a page.
#pragma once

#include <cerrno>
#include <cstdint>

#include "page.hpp"

namespace sparkyard {

// A page to be read and the missing rows that want it (a run in the reader's list).
struct PageRead {
  uint64_t page;
  uint32_t first;
  uint32_t count;
};

// Told of each page that arrived whole, or of the first failure. `take` may be called from several threads at a time.
struct Sink {
  virtual ~Sink() = default;
  virtual bool take(const PageRead& read, const uint8_t* bytes) = 0;  // false: the page is bad, stop
  virtual void fail(const PageRead& read, int error) = 0;              // error 0: the file ended inside the page
};

struct Device {
  virtual ~Device() = default;
  virtual void read(const PageRead* reads, uint64_t count, Sink& sink) = 0;
};

constexpr int kRetries = 3;  // EINTR and EAGAIN are asked again this often before they count as failures

}  // namespace sparkyard
