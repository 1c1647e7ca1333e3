#include "work.h"

#include <algorithm>
#include <map>
#include <set>

namespace simgpu {
namespace {

// Shapes, handles and lists: nothing that is done to the items of a tensor.
const std::set<std::string>& WithoutLaunch() {
  static const auto* types = new std::set<std::string>{
      "AssignVariableOp",    "Bitcast",            "Const",
      "EmptyTensorList",     "ExpandDims",         "Identity",
      "PlaceholderWithDefault", "Rank",            "RefIdentity",
      "Reshape",             "Shape",              "ShapeN",
      "Size",                "Snapshot",           "SparseReshape",
      "Squeeze",             "StatelessRandomGetAlg", "StopGradient",
      "TensorArray",         "TensorArrayReadV3",  "TensorArrayV3",
      "TensorArrayWriteV3",  "TensorListElementShape", "TensorListFromTensor",
      "TensorListGetItem",   "TensorListLength",   "TensorListPopBack",
      "TensorListPushBack",  "TensorListReserve",  "TensorListResize",
      "TensorListSetItem",   "_EagerConst",
  };
  return *types;
}

// Of their first input these read no more than they write: a few rows of a large table.
const std::set<std::string>& ReadsWhatItWrites() {
  static const auto* types = new std::set<std::string>{
      "Gather", "GatherNd",   "GatherV2",     "ResourceGather", "ResourceGatherNd",
      "Slice",  "StridedSlice", "TensorListGather", "TensorListStack",
  };
  return *types;
}

int64_t Product(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) product *= size;
  return product;
}

int64_t Last(const Argument& argument) {
  return argument.shape.empty() ? 1 : argument.shape.back();
}

// A convolution multiplies each of its outputs with all of the filter but the output channels.
double Convolution(const Argument& output, const Argument& filter) {
  return 2.0 * output.NumItems() * filter.NumItems() / std::max<int64_t>(Last(filter), 1);
}

// A depthwise convolution multiplies each of its outputs with one channel of the filter.
double DepthwiseConvolution(const Argument& output, const Argument& filter) {
  return filter.shape.size() == 4 ? 2.0 * output.NumItems() * filter.shape[0] * filter.shape[1] : 0;
}

double MatrixProduct(const Argument& first, const Argument& output, bool transposes_first) {
  const size_t rank = first.shape.size();
  if (rank < 2) return 0;
  return 2.0 * output.NumItems() * first.shape[rank - (transposes_first ? 2 : 1)];
}

// All labels run over all of their sizes. An ellipsis stands for the sizes that have no label.
double Einsum(const std::string& equation, const std::vector<Argument>& inputs) {
  if (inputs.size() < 2) return 0;
  std::map<char, int64_t> sizes;
  int64_t unlabeled = 1;
  size_t begin = 0;
  for (const Argument& input : inputs) {
    const std::string labels = equation.substr(begin, equation.find_first_of(",-", begin) - begin);
    begin += labels.size() + 1;
    const size_t dots = labels.find("...");
    const size_t num_labels = labels.size() - (dots == std::string::npos ? 0 : 3);
    const size_t num_unlabeled = input.shape.size() - num_labels;
    std::vector<int64_t> rest;
    for (size_t axis = 0, place = 0; axis < input.shape.size(); ++axis) {
      if (dots != std::string::npos && place == dots && rest.size() < num_unlabeled) {
        rest.push_back(input.shape[axis]);
      } else {
        if (place == dots) place += 3;
        sizes[labels[place++]] = input.shape[axis];
      }
    }
    unlabeled = std::max(unlabeled, Product(rest));
  }
  double product = 2.0 * unlabeled;
  for (const auto& [label, size] : sizes) product *= size;
  return product;
}

double Flops(const OpFacts& op, const std::vector<Argument>& inputs,
             const std::vector<Argument>& outputs) {
  const std::string& type = op.type;
  if (inputs.size() < 2 || outputs.empty()) return 0;
  const Argument& output = outputs[0];
  if (type == "MatMul" || type == "_FusedMatMul" || type.rfind("BatchMatMul", 0) == 0) {
    return MatrixProduct(inputs[0], output, op.transposes_first);
  }
  if (type == "Einsum") return Einsum(op.equation, inputs);
  if (type == "Conv2D" || type == "Conv3D" || type == "_FusedConv2D") {
    return Convolution(output, inputs[1]);
  }
  if (type == "DepthwiseConv2dNative") return DepthwiseConvolution(output, inputs[1]);
  if (inputs.size() < 3) return 0;
  // Gradients of convolutions: the last input is the gradient of what the convolution returned.
  const Argument& gradient = inputs[2];
  if (type.rfind("Conv2DBackpropInput", 0) == 0 || type.rfind("Conv3DBackpropInput", 0) == 0) {
    return Convolution(gradient, inputs[1]);
  }
  if (type.rfind("Conv2DBackpropFilter", 0) == 0 || type.rfind("Conv3DBackpropFilter", 0) == 0) {
    return Convolution(gradient, output);
  }
  if (type == "DepthwiseConv2dNativeBackpropInput") {
    return DepthwiseConvolution(gradient, inputs[1]);
  }
  if (type == "DepthwiseConv2dNativeBackpropFilter") {
    return DepthwiseConvolution(gradient, output);
  }
  return 0;
}

double Bytes(const OpFacts& op, const std::vector<Argument>& inputs,
             const std::vector<Argument>& outputs) {
  double read = 0, written = 0, largest = 0;
  for (const Argument& input : inputs) {
    read += input.NumBytes();
    largest = std::max<double>(largest, input.NumBytes());
  }
  for (const Argument& output : outputs) written += output.NumBytes();
  if (ReadsWhatItWrites().count(op.type) > 0) return 2 * written;
  // A variable that is updated is as large as what it is updated with, and is read and written.
  return read + written + 2 * op.num_variables * largest;
}

}  // namespace

int64_t Argument::NumItems() const { return item_size == 0 ? 0 : Product(shape); }

bool Launches(const std::string& type) { return WithoutLaunch().count(type) == 0; }

Work WorkOf(const OpFacts& op, const std::vector<Argument>& inputs,
            const std::vector<Argument>& outputs) {
  Work work;
  work.flops = Flops(op, inputs, outputs);
  work.bytes = Bytes(op, inputs, outputs);
  work.is_half = !outputs.empty() && outputs[0].item_size == 2;
  return work;
}

}  // namespace simgpu
