// The C interface of the native half of the Engram store. One translation unit; built on the machine that runs it.
#include <cstdio>
#include <cstdlib>

#include "lookup.hpp"
#include "reader.hpp"

#define SPARKYARD_EXPORT extern "C" __attribute__((visibility("default")))

using sparkyard::kPageBytes;
using sparkyard::kRowsPerPage;

SPARKYARD_EXPORT uint32_t sy_crc32c(uint32_t crc, const uint8_t* data, uint64_t size) {
  return sparkyard::crc32c_extend(crc, data, size);
}

// Interleaves `rows` rows into ⌈rows / 15⌉ sealed pages.
SPARKYARD_EXPORT void sy_lay_out(uint8_t* pages, const uint8_t* weight, const uint8_t* scale, uint64_t rows,
                                 const uint8_t* store_id, uint32_t layer, uint64_t first_page) {
  const sparkyard::Seal seal(store_id, layer);
  for (uint64_t row = 0, page = 0; row < rows; row += kRowsPerPage, ++page)
    seal.lay_out(pages + page * kPageBytes, weight + row * sparkyard::kWeightBytes,
                 scale + row * sparkyard::kScaleBytes, std::min(kRowsPerPage, rows - row), first_page + page);
}

// good[i] = 1 where page i is sound.
SPARKYARD_EXPORT void sy_valid(const uint8_t* pages, uint64_t count, const uint8_t* store_id, uint32_t layer,
                               uint64_t first_page, uint8_t* good) {
  const sparkyard::Seal seal(store_id, layer);
  for (uint64_t page = 0; page < count; ++page)
    good[page] = seal.valid(pages + page * kPageBytes, first_page + page) ? 1 : 0;
}

// depth > 0: io_uring with so many reads in flight; 0: `threads` blocking threads. nullptr, and *error, on failure.
SPARKYARD_EXPORT void* sy_reader_open(int file, const int64_t* ranges, uint64_t range_count, const uint8_t* store_id,
                                      uint32_t layer, uint64_t cache_bytes, uint32_t depth, uint32_t threads,
                                      int32_t* error) {
  try {
    *error = 0;
    return new sparkyard::Reader(file, reinterpret_cast<const sparkyard::Range*>(ranges), range_count, store_id,
                                 layer, cache_bytes, depth, threads);
  } catch (const std::system_error& wrong) {
    *error = wrong.code().value();
  } catch (const std::bad_alloc&) {
    *error = ENOMEM;
  }
  return nullptr;
}

SPARKYARD_EXPORT void sy_reader_close(void* reader) { delete static_cast<sparkyard::Reader*>(reader); }

SPARKYARD_EXPORT int32_t sy_reader_read(void* reader, const int64_t* ids, uint64_t count, int32_t shape,
                                        int32_t foreign_ok, uint8_t* weight, uint8_t* scale, int32_t* index,
                                        uint64_t* distinct) {
  return static_cast<int32_t>(static_cast<sparkyard::Reader*>(reader)->read(
      ids, count, static_cast<sparkyard::Shape>(shape), foreign_ok != 0, weight, scale, index, distinct));
}

SPARKYARD_EXPORT void sy_reader_fault(void* reader, sparkyard::Fault* fault, uint8_t* page) {
  *fault = static_cast<sparkyard::Reader*>(reader)->fault();
  std::memcpy(page, static_cast<sparkyard::Reader*>(reader)->bad_page(), kPageBytes);
}

SPARKYARD_EXPORT void sy_reader_totals(void* reader, sparkyard::Totals* totals) {
  *totals = static_cast<sparkyard::Reader*>(reader)->totals();
}

// A host-function node: `lookup` is a sparkyard::Lookup. Makes no CUDA call.
SPARKYARD_EXPORT void sy_lookup(void* lookup) { sparkyard::run_lookup(*static_cast<sparkyard::Lookup*>(lookup)); }
