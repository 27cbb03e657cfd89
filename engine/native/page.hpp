// The data page of the packed format v1; docs/engram-store.md has the bytes, format.py is the reference.
#pragma once

#include <cstdint>
#include <cstring>

#include "crc32c.hpp"

namespace sparkyard {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kWeightBytes = 256;
constexpr uint64_t kScaleBytes = 8;
constexpr uint64_t kRowBytes = kWeightBytes + kScaleBytes;
constexpr uint64_t kRowsPerPage = 15;
constexpr uint64_t kPayloadBytes = kRowBytes * kRowsPerPage;
constexpr uint64_t kCrcOffset = kPageBytes - 4;

// Knows which file a page belongs to. Integers are little endian, as every machine that this runs on.
struct Seal {
  uint8_t store[32];
  uint32_t layer;
  uint32_t base;  // CRC register after store id and layer

  Seal(const uint8_t* store_id, uint32_t layer_number) : layer(layer_number) {
    std::memcpy(store, store_id, sizeof(store));
    const uint32_t words[2] = {layer, 0};
    base = crc32c_extend(crc32c_extend(0xFFFFFFFFu, store, sizeof(store)),
                         reinterpret_cast<const uint8_t*>(words), sizeof(words));
  }

  uint32_t checksum(const uint8_t* page, uint64_t number) const {
    const uint32_t start = crc32c_extend(base, reinterpret_cast<const uint8_t*>(&number), 8);
    return crc32c_extend(start, page, kCrcOffset) ^ 0xFFFFFFFFu;
  }

  bool valid(const uint8_t* page, uint64_t number) const {
    uint32_t stored;
    std::memcpy(&stored, page + kCrcOffset, 4);
    return stored == checksum(page, number);
  }

  // Writes `rows` ≤ 15 rows, the trailer and the checksum of one page.
  void lay_out(uint8_t* page, const uint8_t* weight, const uint8_t* scale, uint64_t rows, uint64_t number) const {
    for (uint64_t row = 0; row < rows; ++row) {
      std::memcpy(page + row * kRowBytes, weight + row * kWeightBytes, kWeightBytes);
      std::memcpy(page + row * kRowBytes + kWeightBytes, scale + row * kScaleBytes, kScaleBytes);
    }
    std::memset(page + rows * kRowBytes, 0, kPageBytes - rows * kRowBytes);
    std::memcpy(page + kPayloadBytes, store, sizeof(store));
    std::memcpy(page + kPayloadBytes + 32, &layer, 4);
    std::memcpy(page + kPayloadBytes + 40, &number, 8);
    const uint32_t crc = checksum(page, number);
    std::memcpy(page + kCrcOffset, &crc, 4);
  }
};

}  // namespace sparkyard
