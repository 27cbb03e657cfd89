// CRC32C (reflected polynomial 0x82F63B78) with the processor's instruction where it has one.
//
// One CRC instruction has a latency of three cycles and a throughput of one a cycle, so three independent streams run at
// three times the speed of one; their registers are then joined by a table that feeds zeros.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace sparkyard {

constexpr uint32_t kPolynomial = 0x82F63B78u;
constexpr size_t kStreamBytes = 1344;  // 3 × 1344 = 4032 of the 4092 bytes of a page; 60 are left for the tail

using Table = std::array<uint32_t, 256>;

struct CrcTables {
  Table bytes;
  std::array<Table, 4> skip;  // what each byte of a register becomes after kStreamBytes zero bytes

  CrcTables() {
    for (uint32_t value = 0; value < 256; ++value) {
      uint32_t crc = value;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
      bytes[value] = crc;
    }
    for (uint32_t place = 0; place < 4; ++place)
      for (uint32_t value = 0; value < 256; ++value) {
        uint32_t crc = value << (8 * place);
        for (size_t step = 0; step < kStreamBytes; ++step) crc = (crc >> 8) ^ bytes[crc & 0xFF];
        skip[place][value] = crc;
      }
  }

  uint32_t after_stream(uint32_t crc) const {
    return skip[0][crc & 0xFF] ^ skip[1][(crc >> 8) & 0xFF] ^ skip[2][(crc >> 16) & 0xFF] ^ skip[3][crc >> 24];
  }
};

inline const CrcTables& crc_tables() {
  static const CrcTables tables;
  return tables;
}

inline uint32_t extend_by_table(uint32_t crc, const uint8_t* data, size_t size) {
  const Table& table = crc_tables().bytes;
  for (size_t at = 0; at < size; ++at) crc = (crc >> 8) ^ table[(crc ^ data[at]) & 0xFF];
  return crc;
}

inline uint64_t load_u64(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, 8);
  return value;
}

#if defined(__x86_64__)
#define SPARKYARD_CRC_TARGET __attribute__((target("sse4.2")))
#define SPARKYARD_CRC8(crc, byte) _mm_crc32_u8((crc), (byte))
#define SPARKYARD_CRC64(crc, word) static_cast<uint32_t>(_mm_crc32_u64((crc), (word)))
inline bool has_crc_instruction() { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__)
#define SPARKYARD_CRC_TARGET __attribute__((target("arch=armv8-a+crc")))
#define SPARKYARD_CRC8(crc, byte) __crc32cb((crc), (byte))
#define SPARKYARD_CRC64(crc, word) __crc32cd((crc), (word))
inline bool has_crc_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

#if defined(SPARKYARD_CRC_TARGET)
SPARKYARD_CRC_TARGET inline uint32_t extend_by_instruction(uint32_t crc, const uint8_t* data, size_t size) {
  while (size >= 3 * kStreamBytes) {
    uint32_t second = 0, third = 0;
    for (size_t at = 0; at < kStreamBytes; at += 8) {
      crc = SPARKYARD_CRC64(crc, load_u64(data + at));
      second = SPARKYARD_CRC64(second, load_u64(data + kStreamBytes + at));
      third = SPARKYARD_CRC64(third, load_u64(data + 2 * kStreamBytes + at));
    }
    crc = crc_tables().after_stream(crc) ^ second;
    crc = crc_tables().after_stream(crc) ^ third;
    data += 3 * kStreamBytes;
    size -= 3 * kStreamBytes;
  }
  for (; size >= 8; size -= 8, data += 8) crc = SPARKYARD_CRC64(crc, load_u64(data));
  for (; size > 0; --size, ++data) crc = SPARKYARD_CRC8(crc, *data);
  return crc;
}
#endif

// Feeds `size` bytes into a raw register (no inversion at either end).
inline uint32_t crc32c_extend(uint32_t crc, const uint8_t* data, size_t size) {
#if defined(SPARKYARD_CRC_TARGET)
  static const bool fast = has_crc_instruction();
  if (fast) return extend_by_instruction(crc, data, size);
#endif
  return extend_by_table(crc, data, size);
}

}  // namespace sparkyard
