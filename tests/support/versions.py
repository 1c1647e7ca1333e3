"""The version of Keras, for tests of what older releases cannot do themselves."""

import keras
import pytest

KERAS = tuple(map(int, keras.__version__.split(".")[:2]))
needs_layers_beside_the_graph = pytest.mark.skipif(
    KERAS < (3, 15), reason="Keras tracks layers beside a Functional graph since 3.15"
)
