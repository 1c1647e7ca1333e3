// A GPU's memory: the host's, taken a region at a time up to the device's limit.
#ifndef SIMGPU_MEMORY_H_
#define SIMGPU_MEMORY_H_

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace simgpu {

void SetMemoryFunctions(SP_StreamExecutor* executor);

}  // namespace simgpu

#endif
