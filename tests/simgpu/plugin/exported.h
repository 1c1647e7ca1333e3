// What TensorFlow and Python find in the library; all else is hidden.
#ifndef SIMGPU_EXPORTED_H_
#define SIMGPU_EXPORTED_H_

#define EXPORTED extern "C" __attribute__((visibility("default")))

#endif
