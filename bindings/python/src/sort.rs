//! Sorts of keys: a sort determines which values a key can be equal to, and compares them without
//! Python code.

use std::sync::Arc;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple, PyType};
use pyo3::{Borrowed, PyTypeInfo, ffi, intern};

use crate::identity::Known;
use crate::later;

/// Maximum nesting of tuples that are compared here. Python compares deeper ones.
pub(crate) const DEPTH_MAX: usize = 8;

/// 2⁶³: the smallest positive integral float outside the range of `i64`.
const BEYOND_I64: f64 = 9_223_372_036_854_775_808.0;

/// The sort of a key, which determines the values that it can be equal to.
#[derive(Debug, Clone)]
pub(crate) enum Sort {
    None,
    /// An `int` or `bool` within the range of `i64`.
    Int(i64),
    /// An `int` outside the range of `i64` that no `float` is equal to.
    Big,
    Float(f64),
    Str,
    Bytes,
    Tuple,
    /// A type object, which is equal only to itself.
    Type,
    /// An object that another, equal object represents in comparisons.
    Alias(Arc<Alias>),
    Other(Known),
}

/// The plain object that represents another one in comparisons.
#[derive(Debug)]
pub(crate) struct Alias {
    sort: Sort,
    object: Option<Py<PyAny>>,
}

impl Drop for Alias {
    fn drop(&mut self) {
        later::release(self.object.take());
    }
}

impl Sort {
    /// Returns the sort of an object that is compared without Python code; `None` for other
    /// objects.
    #[inline(always)]
    pub(crate) fn of(object: &Bound<'_, PyAny>, depth: usize) -> Option<Self> {
        if object.is_exact_instance_of::<PyString>() {
            Some(Self::Str)
        } else if object.is_exact_instance_of::<PyInt>() {
            let mut overflow = 0;
            // SAFETY: exactly an `int`, so this runs no code of Python's and cannot fail but by
            // the number's size.
            let int =
                unsafe { ffi::PyLong_AsLongLongAndOverflow(object.as_ptr(), &raw mut overflow) };
            (overflow == 0).then_some(Self::Int(int))
        } else {
            Self::of_others(object, depth)
        }
    }

    /// Returns the sort of an object that is neither `str` nor `int`.
    #[inline(never)]
    fn of_others(object: &Bound<'_, PyAny>, depth: usize) -> Option<Self> {
        if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            let is_native = |part: Borrowed<'_, '_, PyAny>| Self::of(&part, depth + 1).is_some();
            let native = depth < DEPTH_MAX && tuple.iter_borrowed().all(is_native);
            native.then_some(Self::Tuple)
        } else if object.is_exact_instance_of::<PyBytes>() {
            Some(Self::Bytes)
        } else if let Ok(float) = object.cast_exact::<PyFloat>() {
            Some(Self::Float(float.value()))
        } else if let Ok(bool) = object.cast_exact::<PyBool>() {
            Some(Self::Int(bool.is_true().into()))
        } else if object.is_none() {
            Some(Self::None)
        } else {
            is_type(object).then_some(Self::Type)
        }
    }

    /// Returns the sort of an object that `plain` represents in comparisons.
    pub(crate) fn of_alias(object: &Bound<'_, PyAny>, plain: Bound<'_, PyAny>) -> Self {
        match Self::of(&plain, 0) {
            // Compared by their values.
            Some(sort @ (Self::None | Self::Int(_) | Self::Float(_))) => sort,
            sort => {
                let is_tuple = plain.is_exact_instance_of::<PyTuple>();
                let sort = sort.unwrap_or(if is_tuple { Self::Tuple } else { Self::Big });
                if plain.is(object) {
                    return sort;
                }
                Self::Alias(Arc::new(Alias { sort, object: Some(plain.unbind()) }))
            }
        }
    }

    /// Returns the hash of an object of this sort. Equal objects have equal hashes.
    ///
    /// # Errors
    /// When the object's `__hash__` raises an exception.
    #[inline(always)]
    pub(crate) fn hash(&self, object: &Bound<'_, PyAny>) -> PyResult<u64> {
        Ok(match self {
            Self::None => 0x6e6f_6e65,
            Self::Int(int) => *int as u64,
            Self::Float(float) => match integer(*float) {
                Some(int) => int as u64,
                None => float.to_bits(),
            },
            // of these types alone, so no code of the user's
            Self::Str | Self::Bytes | Self::Tuple | Self::Type | Self::Big => object.hash()? as u64,
            Self::Alias(_) => object.hash()? as u64, // the same
            Self::Other(_) => unreachable!("its hash comes with its identity"),
        })
    }

    /// Returns whether an object of this sort equals an object of another sort.
    #[inline(always)]
    pub(crate) fn equals(
        &self,
        own: &Bound<'_, PyAny>,
        other: &Self,
        object: &Bound<'_, PyAny>,
    ) -> bool {
        own.is(object) // NaN, too
            || self.equals_another(own, other, object)
    }

    #[inline(never)]
    fn equals_another(
        &self,
        own: &Bound<'_, PyAny>,
        other: &Self,
        object: &Bound<'_, PyAny>,
    ) -> bool {
        match (self, other) {
            (Self::Int(one), Self::Int(other)) => one == other,
            (Self::Float(one), Self::Float(other)) => one == other,
            (Self::Int(int), Self::Float(float)) | (Self::Float(float), Self::Int(int)) => {
                integer(*float) == Some(*int)
            }
            (Self::Str, Self::Str) => {
                // SAFETY: both are `str`, as their sort says, and this thread is attached, as it
                // has them bound. Such a comparison cannot fail, and runs no code of Python's.
                unsafe { ffi::PyUnicode_Compare(own.as_ptr(), object.as_ptr()) == 0 }
            }
            (Self::Bytes, Self::Bytes) => bytes(own) == bytes(object),
            (Self::Tuple, Self::Tuple) => tuples_equal(own, object),
            (Self::Big, Self::Big) => ints_equal(own, object),
            (Self::Alias(alias), _) => alias
                .object
                .as_ref()
                .is_some_and(|plain| alias.sort.equals(plain.bind(own.py()), other, object)),
            (_, Self::Alias(alias)) => alias
                .object
                .as_ref()
                .is_some_and(|plain| self.equals(own, &alias.sort, plain.bind(own.py()))),
            (Self::Other(one), Self::Other(other)) => one.is(other),
            _ => false,
        }
    }
}

/// Returns whether an object is a type that is compared by identity, as is the default.
fn is_type(object: &Bound<'_, PyAny>) -> bool {
    object.get_type().is(PyType::type_object(object.py()))
}

/// Returns the integer that a float is equal to; `None` if there is none in the range of `i64`.
fn integer(float: f64) -> Option<i64> {
    let in_range = (-BEYOND_I64..BEYOND_I64).contains(&float);
    (in_range && float.fract() == 0.0).then_some(float as i64)
}

fn bytes<'a>(object: &'a Bound<'_, PyAny>) -> &'a [u8] {
    object.cast::<PyBytes>().map_or(&[], |bytes| bytes.as_bytes())
}

fn tuples_equal(one: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> bool {
    let (Ok(one), Ok(other)) = (one.cast::<PyTuple>(), other.cast::<PyTuple>()) else {
        return false;
    };
    one.len() == other.len()
        && one.iter_borrowed().zip(other.iter_borrowed()).all(|(one, other)| {
            one.is(&*other)
                || match (Sort::of(&one, 0), Sort::of(&other, 0)) {
                    (Some(sort), Some(others)) => sort.equals(&one, &others, &other),
                    // Not of 64 bits, or tuples with such parts.
                    (None, None) => ints_equal(&one, &other) || tuples_equal(&one, &other),
                    _ => false,
                }
        })
}

/// Returns whether two objects are both `int` and equal.
fn ints_equal(one: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> bool {
    one.is_exact_instance_of::<PyInt>()
        && other.is_exact_instance_of::<PyInt>()
        // SAFETY: both are exactly `int`, and this thread is attached, as it has them bound. Such a
        // comparison cannot fail, allocates nothing, and runs no code of Python's.
        && unsafe { ffi::PyObject_RichCompareBool(one.as_ptr(), other.as_ptr(), ffi::Py_EQ) == 1 }
}

/// Maximum digits of a decimal number that is converted to an `int`. Longer conversions would take
/// too long.
const DIGITS_MAX: i64 = 20_000;

/// Returns the plain object that is equal to an object; `None` if there is none.
///
/// # Errors
/// When `__hash__` raises an exception, or a conversion raises one that is not an `Exception`.
pub(crate) fn to_plain<'py>(
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
        let Some(plain) = to_plain(&part, depth + 1)? else { return Ok(None) };
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
