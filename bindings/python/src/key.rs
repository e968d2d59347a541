//! Keys of a cache: objects of Python, compared without running any code of Python's.
//!
//! The cache compares keys while it holds a lock. Python's comparison may run code that gives the
//! interpreter's lock (GIL) to a thread that then waits for the cache's: neither would go on. So
//! `str`, `int`, `bytes`, `float`, `bool`, `None` and tuples of these, all of exactly these types,
//! are compared here as Python does, without it. Every other key is resolved to an
//! [identity](Known) first, outside of locks, and is equal to keys of the second sort only. So is
//! an `int` of more than 64 bits.
//!
//! Nothing here can fail or allocate under the lock: a comparison that failed would let one key be
//! in a cache twice.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use floe::Equivalent;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};
use pyo3::{Borrowed, PyTraverseError, PyVisit, ffi};

use crate::identity::{Identities, Known};
use crate::later;

/// Tuples in tuples that are compared here. Deeper ones are compared by Python.
const DEPTH_MAX: usize = 8;

/// 2⁶³: the first integral float that is no `i64`.
const BEYOND_I64: f64 = 9_223_372_036_854_775_808.0;

/// Tells which values a key can be equal to.
#[derive(Debug, Clone)]
enum Sort {
    None,
    /// `int` and `bool`.
    Int(i64),
    Float(f64),
    Str,
    Bytes,
    Tuple,
    Other(Known),
}

impl Sort {
    /// The sort of an object that is compared without Python.
    #[inline(always)]
    fn of(object: &Bound<'_, PyAny>, depth: usize) -> Option<Self> {
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

    /// The sort of an object of another type than `str` and `int`.
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
        } else {
            object.is_none().then_some(Self::None)
        }
    }

    /// The hash of an object of this sort: equal for what is equal.
    #[inline(always)]
    fn hash(&self, object: &Bound<'_, PyAny>) -> PyResult<u64> {
        Ok(match self {
            Self::None => 0x6e6f_6e65,
            Self::Int(int) => *int as u64,
            Self::Float(float) => match integer(*float) {
                Some(int) => int as u64,
                None => float.to_bits(),
            },
            // of these types alone, so no code of the user's
            Self::Str | Self::Bytes | Self::Tuple => object.hash()? as u64,
            Self::Other(_) => unreachable!("its hash comes with its identity"),
        })
    }

    #[inline(always)]
    fn equals(&self, own: &Bound<'_, PyAny>, other: &Self, object: &Bound<'_, PyAny>) -> bool {
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
            (Self::Other(one), Self::Other(other)) => one.is(other),
            _ => false,
        }
    }
}

/// The integer that a float is equal to.
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
            let sorts = (Sort::of(&one, 0), Sort::of(&other, 0));
            matches!(sorts, (Some(a), Some(b)) if a.equals(&one, &b, &other))
        })
}

/// Marks keys that were made of the arguments of a call: 0 for others. Keys of different calls are
/// not equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Call(pub(crate) u64);

impl Call {
    /// Returns whether the key is one of the mapping.
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A key in a cache.
#[derive(Debug)]
pub(crate) struct Key {
    hash: u64,
    call: Call,
    sort: Sort,
    /// The object, unless its identity has it.
    native: Option<Py<PyAny>>,
}

impl Drop for Key {
    fn drop(&mut self) {
        later::release(self.native.take());
    }
}

impl Key {
    /// The object, unless it has left the cache.
    pub(crate) fn object<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        match &self.sort {
            Sort::Other(identity) => identity.object(py),
            _ => self.native.as_ref().map(|object| object.bind(py).clone()),
        }
    }

    pub(crate) fn call(&self) -> Call {
        self.call
    }

    /// Another key that is equal to this one, which has not left.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        let native = self.native.as_ref().map(|object| object.clone_ref(py));
        Self { hash: self.hash, call: self.call, sort: self.sort.clone(), native }
    }

    /// Lets go of the object that Python compares, after the key has left the cache.
    pub(crate) fn leave(&self) {
        if let Sort::Other(identity) = &self.sort {
            identity.leave();
        }
    }

    /// Shows the collector of garbage what the key refers to. Only keys that Python compares can
    /// be part of a cycle.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match &self.sort {
            Sort::Other(identity) => identity.traverse(visit),
            _ => Ok(()),
        }
    }

    /// Returns whether the key, whose hash is the same, is equal to what is looked up.
    #[inline(always)]
    fn is(&self, sort: &Sort, object: Option<&Bound<'_, PyAny>>, py: Python<'_>) -> bool {
        match (sort, &self.sort, object, &self.native) {
            (Sort::Other(one), Sort::Other(other), ..) => one.is(other),
            (_, own, Some(object), Some(native)) => sort.equals(object, own, native.bind(py)),
            _ => false,
        }
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash ^ self.call.0);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        if (self.hash, self.call) != (other.hash, other.call) {
            return false;
        }
        // SAFETY: keys are inserted by attached threads alone. The threads of the library, which
        // are not attached, take entries out by their place and compare no keys.
        let py = unsafe { Python::assume_attached() };
        self.is(&other.sort, other.native.as_ref().map(|object| object.bind(py)), py)
    }
}

impl Eq for Key {}

/// A key that is looked up.
#[derive(Debug)]
pub(crate) struct Probe<'a, 'py> {
    hash: u64,
    call: Call,
    sort: Sort,
    object: &'a Bound<'py, PyAny>,
}

impl<'a, 'py> Probe<'a, 'py> {
    /// Of an object, and the call that it is an argument of.
    ///
    /// # Errors
    /// Those of its `__hash__` and `__eq__`, if Python compares it.
    #[inline(always)]
    pub(crate) fn new(
        object: &'a Bound<'py, PyAny>,
        call: Call,
        identities: &Arc<Identities>,
    ) -> PyResult<Self> {
        let (sort, hash) = match Sort::of(object, 0) {
            Some(sort) => {
                let hash = sort.hash(object)?;
                (sort, hash)
            }
            None => Self::identify(object, identities)?,
        };
        Ok(Self { hash, call, sort, object })
    }

    #[cold]
    fn identify(object: &Bound<'py, PyAny>, identities: &Arc<Identities>) -> PyResult<(Sort, u64)> {
        let (identity, hash) = identities.of(object)?;
        Ok((Sort::Other(identity), hash as u64))
    }

    pub(crate) fn py(&self) -> Python<'py> {
        self.object.py()
    }

    /// The key to be inserted.
    pub(crate) fn to_key(&self) -> Key {
        let native = match &self.sort {
            Sort::Other(_) => None,
            _ => Some(self.object.clone().unbind()),
        };
        Key { hash: self.hash, call: self.call, sort: self.sort.clone(), native }
    }
}

impl Hash for Probe<'_, '_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash ^ self.call.0); // as `Key`
    }
}

impl Equivalent<Key> for Probe<'_, '_> {
    #[inline(always)]
    fn equivalent(&self, key: &Key) -> bool {
        (self.hash, self.call) == (key.hash, key.call)
            && key.is(&self.sort, Some(self.object), self.py())
    }
}
