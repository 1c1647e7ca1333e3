#include "records.h"

#include <utility>

namespace simgpu {
namespace {

constexpr size_t kNumKept = 1 << 17;

}  // namespace

void Records::Add(const Record& record) {
  latest_.push_back(record);
  if (latest_.size() > kNumKept) latest_.pop_front();
  if (is_collecting_) collected_.push_back(record);
}

void Records::StartCollecting() {
  collected_.clear();
  is_collecting_ = true;
}

std::vector<Record> Records::StopCollecting() {
  is_collecting_ = false;
  return std::exchange(collected_, {});
}

}  // namespace simgpu
