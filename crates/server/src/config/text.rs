//! Settings written as text, such as `"5s"`.

use std::fmt::{self, Display, Formatter};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, SeqAccess, Visitor};

/// Reads a value with a text form. Where a number stands instead, it says what to write.
pub(super) struct Text<T>(PhantomData<T>);

impl<T: FromStr> Text<T> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }

    fn instead<E: Error>(number: impl Display) -> E {
        let texts = ["", "s", "%"].map(|unit| format!("{number}{unit}"));
        match texts.iter().find(|text| text.parse::<T>().is_ok()) {
            Some(text) => E::custom(format!("{number} is a number: write \"{text}\"")),
            None => E::custom(format!("{number} is a number, not text in quotation marks")),
        }
    }
}

impl<'de, T: FromStr<Err: Display>> Visitor<'de> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("text in quotation marks")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        Err(Self::instead(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        Err(Self::instead(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        Err(Self::instead(number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<T, A::Error> {
        let mut parts: Vec<String> = Vec::new();
        while let Ok(Some(part)) = list.next_element() {
            parts.push(part);
        }
        let joined = parts.join(",");
        Err(A::Error::custom(match joined.parse::<T>() {
            Ok(_) => format!("it is one text, not a list: write \"{joined}\""),
            Err(_) => "it is one text in quotation marks, not a list".to_owned(),
        }))
    }
}
