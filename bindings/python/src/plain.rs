//! Objects of exactly the types that the cache compares, in place of others that are equal to them.
//!
//! This may run code of Python's, and is done outside of locks. Python's rule for keys holds:
//! equal objects have equal hashes, and those that differ in that are not equal.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt, PyString, PyTuple};
use pyo3::{ffi, intern};

use crate::sort::{DEPTH_MAX, Sort};

/// Decimal numbers with more digits are not made an `int` of, which would take long.
const DIGITS_MAX: i64 = 20_000;

/// The plain object that is equal to an object; `None` if there is none.
///
/// # Errors
/// Those of `__hash__`, and errors of conversions that are no `Exception`.
pub(crate) fn of<'py>(
    object: &Bound<'py, PyAny>,
    depth: usize,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = object.py();
    if Sort::of(object, depth).is_some() {
        return Ok(Some(object.clone()));
    }
    if object.is_exact_instance_of::<PyInt>() {
        return of_int(object.clone()).map(Some);
    }
    if has_own_comparison(object)? {
        return Ok(None);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return of_tuple(tuple, depth);
    }
    if let Ok(text) = object.cast::<PyString>() {
        // SAFETY: a `str`, of which this makes one of exactly this type.
        let plain =
            unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyUnicode_FromObject(text.as_ptr()))? };
        return if_equal(plain, object);
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return if_equal(PyBytes::new(py, bytes.as_bytes()).into_any(), object);
    }
    // SAFETY: an object, and this thread is attached.
    if unsafe { ffi::PyNumber_Check(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    let plain = of_number(object);
    match plain {
        Err(error) if error.is_instance_of::<PyException>(py) => Ok(None),
        plain => plain,
    }
}

/// Returns whether the class of an object, which is derived from one of Python's, compares in a way
/// of its own. Two of its objects may be equal, only one of which is equal to a plain one.
fn has_own_comparison(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_sub = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyTuple>()
        || object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyInt>()
        || object.is_instance_of::<PyFloat>();
    if !is_sub || object.is_exact_instance_of::<PyTuple>() {
        return Ok(false);
    }
    let py = object.py();
    let compare = object.get_type().getattr(intern!(py, "__eq__"))?;
    compare.hasattr(intern!(py, "__code__"))
}

/// A plain object, if it is equal to another one.
fn if_equal<'py>(
    plain: Bound<'py, PyAny>,
    object: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let is_equal = plain.hash()? == object.hash()? && plain.eq(object)?;
    Ok(is_equal.then_some(plain))
}

/// A tuple of plain parts.
fn of_tuple<'py>(tuple: &Bound<'py, PyTuple>, depth: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
    if depth >= DEPTH_MAX {
        return Ok(None);
    }
    let mut parts = Vec::with_capacity(tuple.len());
    let mut is_plain = tuple.is_exact_instance_of::<PyTuple>();
    for part in tuple {
        let Some(plain) = of(&part, depth + 1)? else { return Ok(None) };
        is_plain &= plain.is(&part);
        parts.push(plain);
    }
    if is_plain {
        return Ok(Some(tuple.clone().into_any()));
    }
    if_equal(PyTuple::new(tuple.py(), parts)?.into_any(), tuple)
}

/// The `float` that is equal to an `int` of more than 64 bits, or the `int`.
fn of_int(int: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    let Ok(float) = int.extract::<f64>() else { return Ok(int) }; // more than any
    let float = PyFloat::new(int.py(), float).into_any();
    Ok(if float.eq(&int)? { float } else { int })
}

/// A plain number that is equal to another one.
///
/// # Errors
/// Those of the number's methods.
fn of_number<'py>(number: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = number.py();
    let mut real = number.clone();
    if let Ok(imaginary) = number.getattr(intern!(py, "imag")) {
        if imaginary.is_truthy()? {
            return Ok(None);
        }
        real = number.getattr(intern!(py, "real"))?;
    }
    // SAFETY: an object, and this thread is attached.
    match unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyNumber_Float(real.as_ptr())) } {
        Ok(float) if float.is_exact_instance_of::<PyFloat>() => {
            if let Some(float) = if_equal(float, number)? {
                return Ok(Some(float));
            }
        }
        Err(error) if !error.is_instance_of::<PyException>(py) => return Err(error),
        _ => {}
    }
    if let Ok(adjusted) = number.call_method0(intern!(py, "adjusted"))
        && adjusted.extract::<i64>()? > DIGITS_MAX
    {
        return Ok(None);
    }
    // SAFETY: as above.
    let int = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyNumber_Long(real.as_ptr()))? };
    if !int.is_exact_instance_of::<PyInt>() {
        return Ok(None);
    }
    if_equal(int, number)?.map(of_int).transpose()
}
