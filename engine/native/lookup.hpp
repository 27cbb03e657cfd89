// The work of one host-function node inside a CUDA graph: ids in pinned memory → rows in pinned memory.
#pragma once

#include <unistd.h>

#include <cstdio>

#include "reader.hpp"

namespace sparkyard {

constexpr int kFaultExit = 86;  // the process's exit code after a row could not be proven

// Plain data that the Python side fills (staging.py holds the same fields in the same order). All buffers are pinned and
// live as long as the graph.
struct Lookup {
  Reader* reader;
  const int64_t* ids;
  uint64_t count;
  uint8_t* weight;   // [count][256]
  uint8_t* scale;    // [count][8]
  int32_t* index;    // [count]: row of weight and scale, −1 for ids of other ranks
  int32_t* failed;   // one word of the status page: 0, or the code of the fault
  int32_t report;    // file descriptor for the fault report, or −1
  int32_t layer;
  int32_t exit_on_fault;
};

inline const char* reason_of(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kNotOwned: return "not_owned";
    case Code::kIo: return "read_failed";
    case Code::kShort: return "truncated";
    case Code::kBadPage: return "page_corrupt";
  }
  return "unknown";
}

// On a fault: every scale byte becomes 255 (NaN in e8m0) and every index points at a row, so that whatever still runs on the
// device computes NaN; the reason and the row go to the report; then the process ends, before a token can leave.
inline void run_lookup(Lookup& lookup) {
  uint64_t distinct = 0;
  const Code code = lookup.reader->read(lookup.ids, lookup.count, Shape::kDistinct, true, lookup.weight, lookup.scale,
                                        lookup.index, &distinct);
  if (code == Code::kOk) return;
  std::memset(lookup.scale, 255, lookup.count * kScaleBytes);
  std::memset(lookup.index, 0, lookup.count * sizeof(int32_t));
  *lookup.failed = static_cast<int32_t>(code);
  const Fault& fault = lookup.reader->fault();
  char text[256];
  const int size = std::snprintf(
      text, sizeof(text),
      "{\"errno\":%d,\"layer\":%d,\"page\":%lld,\"reason\":\"%s\",\"row\":%lld,\"schema\":\"sparkyard/engram-fault/v1\"}\n",
      fault.error, lookup.layer, static_cast<long long>(fault.page), reason_of(code),
      static_cast<long long>(fault.row));
  const int ends[2] = {lookup.report, STDERR_FILENO};
  for (const int end : ends)
    if (end >= 0 && ::write(end, text, static_cast<size_t>(size)) != size) continue;  // nothing better can be done
  if (lookup.report >= 0) ::fsync(lookup.report);
  if (lookup.exit_on_fault != 0) ::_exit(kFaultExit);
}

}  // namespace sparkyard
