//! Numbers and flags. Where something else stands, the error says what to write instead.

use std::fmt::{self, Display, Formatter};

use serde::de::{Error, Visitor};

/// Reads a whole number.
pub(super) struct Number;

impl Number {
    fn instead<E: Error>(found: impl Display) -> E {
        E::custom(format!("{found} is not a whole number, such as 4"))
    }
}

impl Visitor<'_> for Number {
    type Value = u64;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, such as 4")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u64, E> {
        number.try_into().map_err(|_| Self::instead(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<u64, E> {
        Err(Self::instead(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        match text.parse::<u64>() {
            Ok(number) => Err(E::custom(format!(
                "\"{text}\" is text: write the number {number} without quotation marks"
            ))),
            Err(_) => Err(Self::instead(format!("\"{text}\""))),
        }
    }
}

/// Reads true or false.
pub(super) struct Flag;

impl Visitor<'_> for Flag {
    type Value = bool;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("true or false, without quotation marks")
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<bool, E> {
        Ok(flag)
    }
}
