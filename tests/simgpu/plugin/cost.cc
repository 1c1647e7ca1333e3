#include "cost.h"

#include <algorithm>

namespace simgpu {

// Arithmetic and memory work at the same time, so the slower of the two counts.
Nanos Cost::OfKernel(const Work& work) const {
  const double arithmetic = Seconds(work.flops, work.is_half ? half_flops : flops);
  return Scaled(launch + std::max(arithmetic, Seconds(work.bytes, memory_bandwidth)));
}

}  // namespace simgpu
