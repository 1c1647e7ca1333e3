#include "settings.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <vector>

namespace simgpu {
namespace {

std::string Variable(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value != nullptr ? value : otherwise;
}

}  // namespace

int NumDevices() { return std::stoi(Variable("SIMGPU_COUNT", "4")); }

int64_t MemoryOfDevice(int index) {
  std::stringstream text(Variable("SIMGPU_MEMORY_MB", "2048"));
  std::vector<int64_t> sizes;
  for (std::string size; std::getline(text, size, ',');) sizes.push_back(std::stoll(size) << 20);
  return sizes[std::min<size_t>(index, sizes.size() - 1)];
}

bool GrowsMemory() { return Variable("SIMGPU_GROWTH", "1") != "0"; }

std::string PathOfKernelList() { return Variable("SIMGPU_KERNELS", "kernels.pb"); }

}  // namespace simgpu
