// A bounded cache of proven rows: set-associative, oldest of the set leaves. One reader's own; not shared.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "page.hpp"

namespace sparkyard {

class RowCache {
 public:
  // bytes: the most memory it takes; fewer than one set means no cache.
  explicit RowCache(uint64_t bytes) {
    const uint64_t sets = bytes / (kWays * (sizeof(uint64_t) + kRowBytes) + 1);
    if (sets == 0) return;
    while ((sets_ << 1) <= sets) sets_ <<= 1;
    keys_.assign(sets_ * kWays, 0);
    oldest_.assign(sets_, 0);
    rows_.resize(sets_ * kWays * kRowBytes);
  }

  bool enabled() const { return !keys_.empty(); }

  // The cached row, or nullptr.
  const uint8_t* find(uint64_t local) const {
    const uint64_t base = set_of(local) * kWays;
    for (unsigned way = 0; way < kWays; ++way)
      if (keys_[base + way] == local + 1) return &rows_[(base + way) * kRowBytes];
    return nullptr;
  }

  void keep(uint64_t local, const uint8_t* weight, const uint8_t* scale) {
    const uint64_t set = set_of(local);
    const uint64_t place = set * kWays + oldest_[set];
    oldest_[set] = static_cast<uint8_t>((oldest_[set] + 1) % kWays);
    keys_[place] = local + 1;
    std::memcpy(&rows_[place * kRowBytes], weight, kWeightBytes);
    std::memcpy(&rows_[place * kRowBytes + kWeightBytes], scale, kScaleBytes);
  }

 private:
  static constexpr unsigned kWays = 8;

  uint64_t set_of(uint64_t local) const {
    return (local * 0x9E3779B97F4A7C15ull >> 20) & (sets_ - 1);  // Fibonacci hashing spreads neighbouring rows
  }

  uint64_t sets_ = 1;
  std::vector<uint64_t> keys_;  // local row + 1; 0 is empty
  std::vector<uint8_t> oldest_;
  std::vector<uint8_t> rows_;
};

}  // namespace sparkyard
