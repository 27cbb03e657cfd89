// Takes a batch of row ids, reads each distinct row once, proves its page, and hands the rows out.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache.hpp"
#include "pool.hpp"
#include "uring.hpp"

namespace sparkyard {

enum class Code : int32_t { kOk = 0, kNotOwned = 1, kIo = 2, kShort = 3, kBadPage = 4 };

// Plain data, read by the Python side (native_reader.py holds the same fields in the same order).
struct Fault {
  int32_t code;
  int32_t error;  // errno of kIo
  int64_t row;    // global id
  int64_t page;
};

constexpr unsigned kLatencyBounds = 13;
constexpr uint64_t kLatencyBoundsUs[kLatencyBounds] = {50,    100,    200,    500,     1000,    2000,     5000,
                                                       10000, 20000, 50000, 100000, 500000, 2000000};

struct Totals {
  uint64_t batches, requested, unique, hits, pages, errors, nanoseconds;
  uint64_t latency[kLatencyBounds + 1];
};

struct Range {
  int64_t start, end;
};

// How rows leave: one per id in the order of the ids, or each distinct row once with an index per id.
enum class Shape : int32_t { kPerId = 0, kDistinct = 1 };

class Reader final : private Sink {
 public:
  Reader(int file, const Range* ranges, uint64_t range_count, const uint8_t* store_id, uint32_t layer,
         uint64_t cache_bytes, unsigned depth, unsigned threads)
      : ranges_(ranges, ranges + range_count), seal_(store_id, layer), cache_(cache_bytes) {
    uint64_t base = 0;
    for (const Range& range : ranges_) {
      bases_.push_back(base);
      base += static_cast<uint64_t>(range.end - range.start);
    }
    if (depth > 0) {
      device_ = std::make_unique<Uring>(file, depth);
    } else {
      device_ = std::make_unique<Pool>(file, threads);
    }
  }

  // weight: [n][256], scale: [n][8], index: int32[n] (kDistinct only). Ids of other ranks: index −1 when `foreign_ok`,
  // else kNotOwned. Returns the code; `distinct` is the number of distinct rows.
  Code read(const int64_t* ids, uint64_t count, Shape shape, bool foreign_ok, uint8_t* weight, uint8_t* scale,
            int32_t* index, uint64_t* distinct) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto start = std::chrono::steady_clock::now();
    fault_ = {};
    weight_ = weight;
    scale_ = scale;
    shape_ = shape;
    if (sort(ids, count, foreign_ok, index)) {
      collect(index);
      device_->read(reads_.data(), reads_.size(), *this);
      if (fault_.code == 0 && cache_.enabled()) keep();
    }
    *distinct = rows_.size();
    account(keys_.size(), std::chrono::steady_clock::now() - start);
    return static_cast<Code>(fault_.code);
  }

  const Fault& fault() const { return fault_; }
  const uint8_t* bad_page() const { return bad_page_; }
  const Totals& totals() const { return totals_; }

 private:
  struct Row {
    uint64_t local;
    uint32_t first, count;  // its run in keys_
  };

  int64_t local_of(int64_t id) const {
    auto after = std::upper_bound(ranges_.begin(), ranges_.end(), id,
                                  [](int64_t value, const Range& range) { return value < range.start; });
    if (after == ranges_.begin()) return -1;
    const auto place = static_cast<size_t>(after - ranges_.begin()) - 1;
    return id < ranges_[place].end ? id - ranges_[place].start + static_cast<int64_t>(bases_[place]) : -1;
  }

  int64_t global_of(uint64_t local) const {
    size_t place = ranges_.size() - 1;
    while (bases_[place] > local) --place;
    return ranges_[place].start + static_cast<int64_t>(local - bases_[place]);
  }

  // Fills keys_ with (local row, position) in order of rows. False when a foreign id is not welcome.
  bool sort(const int64_t* ids, uint64_t count, bool foreign_ok, int32_t* index) {
    keys_.clear();
    rows_.clear();
    reads_.clear();
    uint64_t largest = 0;
    for (uint64_t at = 0; at < count; ++at) {
      const int64_t local = local_of(ids[at]);
      if (local >= 0) {
        keys_.push_back(static_cast<uint64_t>(local) << 32 | at);
        largest = std::max(largest, static_cast<uint64_t>(local));
      } else if (foreign_ok) {
        if (shape_ == Shape::kDistinct) {
          index[at] = -1;
        } else {  // decodes to +0
          std::memset(weight_ + at * kWeightBytes, 0, kWeightBytes);
          std::memset(scale_ + at * kScaleBytes, kUnitScale, kScaleBytes);
        }
      } else {
        fault_ = {static_cast<int32_t>(Code::kNotOwned), 0, ids[at], -1};
        return false;
      }
    }
    if (keys_.size() < kRadixFrom) {
      std::sort(keys_.begin(), keys_.end());
      return true;
    }
    other_.resize(keys_.size());
    for (unsigned shift = 32; shift < 64; shift += 11) {
      if (largest >> (shift - 32) == 0) break;
      uint32_t counts[2048 + 1] = {};
      for (const uint64_t key : keys_) ++counts[(key >> shift & 2047) + 1];
      for (unsigned digit = 0; digit < 2048; ++digit) counts[digit + 1] += counts[digit];
      for (const uint64_t key : keys_) other_[counts[key >> shift & 2047]++] = key;
      keys_.swap(other_);
    }
    return true;
  }

  // Groups keys_ into distinct rows, takes the cached ones, and lists the pages of the others.
  void collect(int32_t* index) {
    missing_.clear();
    for (uint32_t at = 0; at < keys_.size();) {
      const uint64_t local = keys_[at] >> 32;
      uint32_t end = at + 1;
      while (end < keys_.size() && keys_[end] >> 32 == local) ++end;
      const auto number = static_cast<uint32_t>(rows_.size());
      rows_.push_back({local, at, end - at});
      if (shape_ == Shape::kDistinct)
        for (uint32_t key = at; key < end; ++key) index[keys_[key] & 0xFFFFFFFFu] = static_cast<int32_t>(number);
      at = end;
      const uint8_t* cached = cache_.enabled() ? cache_.find(local) : nullptr;
      if (cached != nullptr) {
        hand_out(number, cached);
        continue;
      }
      const uint64_t page = 1 + local / kRowsPerPage;
      if (reads_.empty() || reads_.back().page != page)
        reads_.push_back({page, static_cast<uint32_t>(missing_.size()), 0});
      ++reads_.back().count;
      missing_.push_back(number);
    }
  }

  void hand_out(uint32_t number, const uint8_t* row) {
    const Row& which = rows_[number];
    if (shape_ == Shape::kDistinct) {
      put(number, row);
      return;
    }
    for (uint32_t key = which.first; key < which.first + which.count; ++key) put(keys_[key] & 0xFFFFFFFFu, row);
  }

  void put(uint64_t place, const uint8_t* row) {
    std::memcpy(weight_ + place * kWeightBytes, row, kWeightBytes);
    std::memcpy(scale_ + place * kScaleBytes, row + kWeightBytes, kScaleBytes);
  }

  bool take(const PageRead& read, const uint8_t* bytes) override {
    if (!seal_.valid(bytes, read.page)) {
      blame(Code::kBadPage, 0, read, bytes);
      return false;
    }
    for (uint32_t at = read.first; at < read.first + read.count; ++at) {
      const uint32_t number = missing_[at];
      hand_out(number, bytes + rows_[number].local % kRowsPerPage * kRowBytes);
    }
    return true;
  }

  void fail(const PageRead& read, int error) override {
    blame(error == 0 ? Code::kShort : Code::kIo, error, read, nullptr);
  }

  void blame(Code code, int error, const PageRead& read, const uint8_t* bytes) {
    const std::lock_guard<std::mutex> lock(fault_mutex_);
    if (fault_.code != 0) return;  // the first failure is told
    const int64_t row = global_of(rows_[missing_[read.first]].local);
    fault_ = {static_cast<int32_t>(code), error, row, static_cast<int64_t>(read.page)};
    if (bytes != nullptr) std::memcpy(bad_page_, bytes, kPageBytes);
  }

  void keep() {
    for (const uint32_t number : missing_) {
      const uint64_t place = shape_ == Shape::kDistinct ? number : keys_[rows_[number].first] & 0xFFFFFFFFu;
      cache_.keep(rows_[number].local, weight_ + place * kWeightBytes, scale_ + place * kScaleBytes);
    }
  }

  void account(uint64_t count, std::chrono::steady_clock::duration took) {
    if (fault_.code != 0) {
      ++totals_.errors;
      return;
    }
    const auto nanoseconds =
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
    ++totals_.batches;
    totals_.requested += count;
    totals_.unique += rows_.size();
    totals_.hits += rows_.size() - missing_.size();
    totals_.pages += reads_.size();
    totals_.nanoseconds += nanoseconds;
    unsigned bucket = 0;
    while (bucket < kLatencyBounds && nanoseconds > kLatencyBoundsUs[bucket] * 1000) ++bucket;
    ++totals_.latency[bucket];
  }

  static constexpr int kUnitScale = 127;  // e8m0 for 1.0
  static constexpr size_t kRadixFrom = 2048;

  std::vector<Range> ranges_;
  std::vector<uint64_t> bases_;
  Seal seal_;
  RowCache cache_;
  std::unique_ptr<Device> device_;
  std::mutex mutex_;
  std::mutex fault_mutex_;
  std::vector<uint64_t> keys_, other_;
  std::vector<Row> rows_;
  std::vector<uint32_t> missing_;
  std::vector<PageRead> reads_;
  Shape shape_ = Shape::kPerId;
  uint8_t* weight_ = nullptr;
  uint8_t* scale_ = nullptr;
  Fault fault_ = {};
  Totals totals_ = {};
  alignas(kPageBytes) uint8_t bad_page_[kPageBytes] = {};
};

}  // namespace sparkyard
