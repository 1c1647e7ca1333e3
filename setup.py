"""Installs keras-mgpu. Tool settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION: dict[str, str] = {}
exec((HERE / "keras_mgpu" / "version.py").read_text(encoding="utf-8"), VERSION)

setup(
    name="keras-mgpu",
    version=VERSION["__version__"],
    description="Train Keras models on several GPUs, with the same numbers as on one.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=find_packages(include=["keras_mgpu", "keras_mgpu.*"]),
    package_data={"keras_mgpu": ["py.typed"]},
    python_requires=">=3.10,<3.14",
    install_requires=[
        "tensorflow>=2.19",
        "keras>=3.12",
        "tensorboard>=2.19",
        "numpy",
        "pillow>=10.1",
        "psutil>=5.9",
        "rich>=13",
    ],
    extras_require={
        "bench": ["torch==2.13.0"],
        "cuda": ["tensorflow[and-cuda]>=2.19"],
        "nvidia": ["nvidia-ml-py>=12"],
        "dev": [
            "hypothesis>=6",
            "matplotlib>=3.8",
            "mypy>=1.10",
            "nvidia-ml-py>=12",
            "pytest>=8",
            "pytest-xdist>=3",
            "ruff>=0.8",
            "scikit-learn>=1.5",
        ],
    },
    entry_points={"console_scripts": ["keras-mgpu = keras_mgpu.cli.main:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
