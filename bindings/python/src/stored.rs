//! Keys and values of a hybrid cache as bytes, in the form that its file has them.
//!
//! A key is a tag and its content. The parts of a tuple have their lengths before them, so
//! different keys have different bytes. Equal keys have equal bytes, as in a `dict`: `True` is
//! encoded as 1, and a float without a fraction as the `int` that it equals.
//!
//! | tag | key | content |
//! |---|---|---|
//! | `s` | `str` | UTF-8 |
//! | `b` | `bytes` | the bytes |
//! | `i` | `int` | the least number of bytes in two's complement, little-endian |
//! | `f` | `float` | IEEE 754, 8 bytes, little-endian |
//! | `n` | `None` | |
//! | `t` | `tuple` | for each part its length in 4 bytes, little-endian, and its encoding |
//!
//! A value is a tag and its content: `bytes` are stored as they are, other objects as the
//! serializer returns them.

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit, intern};

use crate::sort::{self, DEPTH_MAX};

/// Longest encoded key in bytes.
const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// Encodes a key.
///
/// # Errors
/// When the object's type is not one of those that a file can have as keys, or the key is too long.
pub(crate) fn encode_key(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut bytes = Vec::with_capacity(48);
    encode_part(object, 0, &mut bytes)?;
    if bytes.len() > KEY_BYTES_MAX {
        let len = bytes.len();
        return Err(PyValueError::new_err(format!(
            "a key of {len} bytes is too long: it may have {KEY_BYTES_MAX}"
        )));
    }
    Ok(bytes)
}

fn encode_part(object: &Bound<'_, PyAny>, depth: usize, bytes: &mut Vec<u8>) -> PyResult<()> {
    if let Ok(text) = object.cast_exact::<PyString>() {
        bytes.push(b's');
        bytes.extend_from_slice(text.to_str()?.as_bytes());
    } else if let Ok(content) = object.cast_exact::<PyBytes>() {
        bytes.push(b'b');
        bytes.extend_from_slice(content.as_bytes());
    } else if object.is_exact_instance_of::<PyInt>() || object.is_exact_instance_of::<PyBool>() {
        encode_int(object, bytes)?;
    } else if let Ok(tuple) = object.cast_exact::<PyTuple>()
        && depth < DEPTH_MAX
    {
        bytes.push(b't');
        for part in tuple.iter_borrowed() {
            let start = bytes.len();
            bytes.extend_from_slice(&[0; 4]);
            encode_part(&part, depth + 1, bytes)?;
            // Longer ones make the key too long.
            let len = u32::try_from(bytes.len() - start - 4).unwrap_or(u32::MAX);
            bytes[start..start + 4].copy_from_slice(&len.to_le_bytes());
        }
    } else if object.is_none() {
        bytes.push(b'n');
    } else if let Ok(float) = object.cast_exact::<PyFloat>() {
        let float = float.value();
        if float.is_finite() && float.fract() == 0.0 {
            let int = object.call_method0(intern!(object.py(), "__int__"))?;
            return encode_int(&int, bytes);
        }
        bytes.push(b'f');
        let float = if float.is_nan() { f64::NAN } else { float };
        bytes.extend_from_slice(&float.to_le_bytes());
    } else {
        match sort::to_plain(object, depth)? {
            Some(plain) if !plain.is(object) && !is_type(&plain) => {
                encode_part(&plain, depth, bytes)?;
            }
            _ => return Err(unsupported(object, depth)),
        }
    }
    Ok(())
}

fn is_type(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<pyo3::types::PyType>()
}

#[cold]
fn unsupported(object: &Bound<'_, PyAny>, depth: usize) -> PyErr {
    if depth >= DEPTH_MAX {
        return PyTypeError::new_err(format!("a key has tuples in at most {DEPTH_MAX} levels"));
    }
    let name = object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    let inside = if depth > 0 { " inside a tuple" } else { "" };
    PyTypeError::new_err(format!(
        "a key must be a str, bytes, an int, a float, None or a tuple of these, not {name}{inside}"
    ))
}

fn encode_int(int: &Bound<'_, PyAny>, bytes: &mut Vec<u8>) -> PyResult<()> {
    bytes.push(b'i');
    if let Ok(int) = int.extract::<i64>() {
        // The sign is the highest bit of the last byte.
        let significant = if int < 0 { 65 - int.leading_ones() } else { 65 - int.leading_zeros() };
        let len = significant.div_ceil(8) as usize;
        bytes.extend_from_slice(&int.to_le_bytes()[..len]);
        return Ok(());
    }
    let py = int.py();
    let magnitude =
        if int.lt(0)? { int.call_method0(intern!(py, "__invert__"))? } else { int.clone() };
    let bits: usize = magnitude.call_method0(intern!(py, "bit_length"))?.extract()?;
    if bits / 8 > KEY_BYTES_MAX {
        return Err(PyValueError::new_err(format!("a key of {bits} bits is too long")));
    }
    let signed = PyDict::new(py);
    signed.set_item(intern!(py, "signed"), true)?;
    let method = intern!(py, "to_bytes");
    let encoded = int.call_method(method, (bits / 8 + 1, "little"), Some(&signed))?;
    bytes.extend_from_slice(encoded.cast::<PyBytes>()?.as_bytes());
    Ok(())
}

/// Decodes a key. Returns `None` if the bytes are not those of a key.
///
/// # Errors
/// When Python runs out of memory.
pub(crate) fn decode_key<'py>(
    py: Python<'py>,
    bytes: &[u8],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some((tag, content)) = bytes.split_first() else { return Ok(None) };
    Ok(Some(match tag {
        b's' => match std::str::from_utf8(content) {
            Ok(text) => PyString::new(py, text).into_any(),
            Err(_) => return Ok(None),
        },
        b'b' => PyBytes::new(py, content).into_any(),
        b'i' => {
            let signed = PyDict::new(py);
            signed.set_item(intern!(py, "signed"), true)?;
            let content = PyBytes::new(py, content);
            let method = intern!(py, "from_bytes");
            py.get_type::<PyInt>().call_method(method, (content, "little"), Some(&signed))?
        }
        b'f' => match content.try_into() {
            Ok(content) => PyFloat::new(py, f64::from_le_bytes(content)).into_any(),
            Err(_) => return Ok(None),
        },
        b'n' => py.None().into_bound(py),
        b't' => {
            let (mut parts, mut rest) = (Vec::new(), content);
            while let Some((len, after)) = rest.split_first_chunk::<4>() {
                let len = u32::from_le_bytes(*len) as usize;
                let Some((part, others)) = after.split_at_checked(len) else { return Ok(None) };
                let Some(part) = decode_key(py, part)? else { return Ok(None) };
                parts.push(part);
                rest = others;
            }
            if !rest.is_empty() {
                return Ok(None);
            }
            PyTuple::new(py, parts)?.into_any()
        }
        _ => return Ok(None),
    }))
}

/// Tag of `bytes`, which are stored as they are.
const RAW: u8 = 0;
/// Tag of objects that `pickle` has serialized.
const PICKLED: u8 = 1;
/// Tag of objects that a serializer of the program's own has serialized.
const SERIALIZED: u8 = 2;

/// The functions that turn objects into bytes and back.
pub(crate) struct Serializer {
    dumps: Py<PyAny>,
    loads: Py<PyAny>,
    tag: u8,
}

impl Serializer {
    /// Returns the serializer of a module or object with `dumps` and `loads`; `None` is `pickle`.
    ///
    /// # Errors
    /// When the object lacks one of these.
    pub(crate) fn new(py: Python<'_>, given: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let pickle = py.import("pickle")?.into_any();
        let module = given.unwrap_or(&pickle);
        let function = |name| {
            module.getattr(name).map(Bound::unbind).map_err(|_| {
                PyTypeError::new_err(format!(
                    "a serializer must have the functions dumps and loads; it has no {name}"
                ))
            })
        };
        let tag = if module.is(&pickle) { PICKLED } else { SERIALIZED };
        Ok(Self { dumps: function("dumps")?, loads: function("loads")?, tag })
    }

    /// Encodes a value.
    ///
    /// # Errors
    /// When the serializer raises an exception, or returns something other than bytes.
    pub(crate) fn encode(&self, value: &Bound<'_, PyAny>) -> PyResult<Bytes> {
        let py = value.py();
        let tagged = |tag: u8, content: &[u8]| {
            let mut bytes = Vec::with_capacity(1 + content.len());
            bytes.push(tag);
            bytes.extend_from_slice(content);
            Bytes::from(bytes)
        };
        if let Ok(content) = value.cast_exact::<PyBytes>() {
            return Ok(tagged(RAW, content.as_bytes()));
        }
        let content = if self.tag == PICKLED {
            self.dumps.bind(py).call1((value, 5))? // any later Python reads this protocol
        } else {
            self.dumps.bind(py).call1((value,))?
        };
        match content.cast::<PyBytes>() {
            Ok(content) => Ok(tagged(self.tag, content.as_bytes())),
            Err(_) => Err(PyTypeError::new_err(format!(
                "the serializer's dumps must return bytes, not {}",
                content.get_type().name()?
            ))),
        }
    }

    /// Decodes a value. Returns `None` if another serializer has encoded it.
    ///
    /// # Errors
    /// When the serializer raises an exception, for example because a class has gone.
    pub(crate) fn decode<'py>(
        &self,
        py: Python<'py>,
        bytes: &[u8],
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((&tag, content)) = bytes.split_first() else { return Ok(None) };
        let content = PyBytes::new(py, content);
        match tag {
            RAW => Ok(Some(content.into_any())),
            tag if tag == self.tag => self.loads.bind(py).call1((content,)).map(Some),
            _ => Ok(None),
        }
    }

    /// Reports the functions to the garbage collector.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.dumps)?;
        visit.call(&self.loads)
    }
}
