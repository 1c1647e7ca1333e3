// Copies between the host and devices, between devices, and within one.
#ifndef SIMGPU_COPIES_H_
#define SIMGPU_COPIES_H_

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

namespace simgpu {

void SetCopyFunctions(SP_StreamExecutor* executor);

}  // namespace simgpu

#endif
