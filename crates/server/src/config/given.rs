//! Settings given by name, as options or in the text of a tier, for the deserializer that reads
//! files too.

use std::fmt::{self, Display, Formatter};

use serde::de::value::{SeqDeserializer, StrDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, Visitor,
    value::MapAccessDeserializer,
};
use serde::forward_to_deserialize_any;

/// A setting and its values; a flag has none.
pub type Given = (String, Vec<String>);

/// Reads a table of settings that are given by name.
///
/// # Errors
/// The first error, after the setting's name.
pub fn read_given<T: DeserializeOwned>(given: Vec<Given>) -> Result<T, String> {
    let map = Named { rest: given.into_iter(), next: None };
    T::deserialize(MapAccessDeserializer::new(map)).map_err(|GivenError(problem)| problem)
}

#[derive(Debug)]
struct GivenError(String);

impl Display for GivenError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GivenError {}

impl Error for GivenError {
    fn custom<T: Display>(problem: T) -> Self {
        Self(problem.to_string())
    }
}

struct Named {
    rest: std::vec::IntoIter<Given>,
    next: Option<Given>,
}

impl<'de> MapAccess<'de> for Named {
    type Error = GivenError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, GivenError> {
        self.next = self.rest.next();
        let Some((name, _)) = &self.next else { return Ok(None) };
        seed.deserialize(StrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, GivenError> {
        let (name, values) = self.next.take().expect("a key was read");
        let value = seed.deserialize(Texts(values));
        value.map_err(|GivenError(problem)| GivenError(format!("{name}: {problem}")))
    }
}

/// The values of a setting.
struct Texts(Vec<String>);

impl<'de> Deserializer<'de> for Texts {
    type Error = GivenError;

    fn deserialize_any<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, GivenError> {
        match self.0.len() {
            1 => visitor.visit_string(self.0.remove(0)),
            _ => visitor.visit_seq(SeqDeserializer::new(self.0.into_iter())),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, GivenError> {
        match self.0.first() {
            None => visitor.visit_bool(true),
            Some(value) => Err(GivenError(format!("it has no value, such as {value:?}"))),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, GivenError> {
        let text = self.0.first().map_or("", String::as_str);
        match text.parse() {
            Ok(number) => visitor.visit_u64(number),
            Err(_) => Err(GivenError(format!("`{text}` is not a whole number"))),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
