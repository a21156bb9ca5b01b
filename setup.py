from setuptools import setup

setup(
    cffi_modules=["commitfs/native/build_ffi.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
