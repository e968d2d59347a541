//! Conversion of objects to equal objects of exactly the types that the cache compares by itself.
//!
//! The conversion may run Python code, and is done outside of locks. It relies on Python's rule for
//! keys: equal objects have equal hashes.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt, PyString, PyTuple};
use pyo3::{ffi, intern};

use crate::sort::{DEPTH_MAX, Sort};

/// Maximum digits of a decimal number that is converted to an `int`. Longer conversions would take
/// too long.
const DIGITS_MAX: i64 = 20_000;

/// Returns the plain object that is equal to an object; `None` if there is none.
///
/// # Errors
/// When `__hash__` raises an exception, or a conversion raises one that is not an `Exception`.
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

/// Returns whether a subclass of a built-in type defines its own comparison. Then two of its
/// objects may be equal although only one of them equals a plain object.
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

/// Returns the plain object if it is equal to the other one.
fn if_equal<'py>(
    plain: Bound<'py, PyAny>,
    object: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let is_equal = plain.hash()? == object.hash()? && plain.eq(object)?;
    Ok(is_equal.then_some(plain))
}

/// Returns an equal tuple of plain elements; `None` if an element has no plain equivalent.
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

/// Returns the `float` that is equal to an `int` of more than 64 bits, or else the `int`.
fn of_int(int: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    let Ok(float) = int.extract::<f64>() else { return Ok(int) }; // more than any
    let float = PyFloat::new(int.py(), float).into_any();
    Ok(if float.eq(&int)? { float } else { int })
}

/// Returns a plain number that is equal to another one; `None` if there is none.
///
/// # Errors
/// When a method of the number raises an exception.
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
