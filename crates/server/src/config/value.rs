//! The types of settings, and their textual forms.

use std::fmt::{self, Display, Formatter};
use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::volume_share::CachePortion;
use floe_block::{Admissions, BlockSizes, Evict, MemoryWrite, WriteMode, format_size};
use floe_device::{Spec, parse_bytes};
use floe_nvme::target::io::BlockSize;
use floe_nvme::target::subsystem::{NqnError, check_nqn};
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use super::declare::{Flag, Form, Number, SettingKind, Text};
use crate::admin::AdminChoice;
use crate::listener::ListenAddress;
use crate::named_clients::NamedClient;
use crate::tls::TlsMode;

/// A type of settings: a single value, an optional one, or a list.
pub(crate) trait Value: Sized {
    const FORM: Form;

    /// Reads the value from a file, an option or an admin request.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;

    /// Writes the value in the form of a file.
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;

    /// Returns whether the value is set, rather than left to its default.
    fn is_given(&self) -> bool;

    /// Returns the value as a number, or `None` for other types.
    fn number(&self) -> Option<u64> {
        None
    }
}

/// A type of settings with a single value, which may be optional or in a list.
pub(crate) trait Scalar: Sized {
    const FORM: Form;
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;
    fn number(&self) -> Option<u64> {
        None
    }
}

impl<T: Scalar> Value for Option<T> {
    const FORM: Form = T::FORM;

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::read(from).map(Some)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Some(value) => value.write(to),
            None => to.serialize_none(),
        }
    }

    fn is_given(&self) -> bool {
        self.is_some()
    }

    fn number(&self) -> Option<u64> {
        self.as_ref().and_then(T::number)
    }
}

impl<T: Scalar> Value for Vec<T> {
    const FORM: Form = Form { is_list: true, ..T::FORM };

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(OneOrMore(PhantomData))
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter().map(Scalars))
    }

    fn is_given(&self) -> bool {
        !self.is_empty()
    }
}

impl<T: Scalar> Value for Option<Vec<T>> {
    const FORM: Form = <Vec<T> as Value>::FORM;

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::read(from).map(Some)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter().flatten().map(Scalars))
    }

    fn is_given(&self) -> bool {
        self.is_some()
    }
}

impl Value for bool {
    const FORM: Form =
        Form { value: "", unit: "", forms: "", kind: SettingKind::Flag, is_list: false };

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_bool(Flag)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bool(*self)
    }

    fn is_given(&self) -> bool {
        *self
    }
}

impl Value for u64 {
    const FORM: Form = <Self as Scalar>::FORM;

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Scalar::read(from)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Scalar::write(self, to)
    }

    fn is_given(&self) -> bool {
        true
    }

    fn number(&self) -> Option<u64> {
        Some(*self)
    }
}

impl Scalar for u64 {
    const FORM: Form =
        Form { value: "N", unit: "", forms: "", kind: SettingKind::Number, is_list: false };

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_u64(Number)
    }

    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(*self)
    }

    fn number(&self) -> Option<u64> {
        Some(*self)
    }
}

/// Makes types that are written as text usable as settings.
macro_rules! texts {
    ($($type:ty: $value:literal $unit:literal $forms:literal, |$it:ident| $shown:expr;)*) => { $(
        impl Scalar for $type {
            const FORM: Form = Form {
                value: $value,
                unit: $unit,
                forms: $forms,
                kind: SettingKind::Text,
                is_list: false,
            };

            fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Text::new())
            }

            fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let $it = self;
                to.collect_str(&$shown)
            }
        }
    )* };
}

texts! {
    String: "NAME" "" "", |it| it;
    PathBuf: "FILE" "" "", |it| it.display();
    Spec: "SPEC" "" "[file:]PATH[,size=SIZE], memory:SIZE, stripe:PATH+PATH[,chunk=SIZE]\
        [,size=SIZE], mirror:HALF+HALF, rbd:POOL/IMAGE, s3://BUCKET/PREFIX\
        [,size=SIZE] or nbd://HOST/EXPORT", |it| it;
    Bytes: "SIZE" "bytes" "", |it| it;
    Percent: "SHARE" "percent" "", |it| it;
    CachePortion: "PART" "" "", |it| it;
    Interval: "DURATION" "time" "", |it| it;
    WriteMode: "MODE" "" "through, around, back, only or pass", |it| it;
    MemoryWrite: "WHEN" "" "through or back", |it| it;
    Freeze: "HOW" "" "adaptive or off", |it| it;
    TlsMode: "WHEN" "" "off, on or require", |it| it;
    Attach: "HOW" "" "ublk", |it| it;
    LogicalBlock: "SIZE" "bytes" "512 or 4KiB", |it| it;
    Admissions: "ADMISSION" "" "", |it| it;
    Evict: "POLICY" "" "", |it| it;
    BlockSizes: "LIST" "bytes" "", |it| it;
    ListenAddress: "URI" "" "nbd://HOST:PORT, nbd+unix:///?socket=PATH or \
        nvme-tcp://HOST:PORT", |it| it;
    AdminChoice: "ADDRESS" "" "", |it| it;
    Group: "GROUP" "" "", |it| it.name;
    Nqn: "NQN" "" "", |it| it;
    NamedClient: "CLIENT" "" "NAME[,requests-per-second=N][,bytes-per-second=SIZE][,weight=N]",
        |it| it;
}

/// Deserialises the value of a setting.
pub(crate) struct Read<T>(PhantomData<T>);

impl<T> Read<T> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: Value> DeserializeSeed<'de> for Read<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        T::read(from)
    }
}

/// Serialises the value of a setting.
pub(crate) struct Written<'a, T>(pub(crate) &'a T);

impl<T: Value> Serialize for Written<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write(to)
    }
}

/// Serialises one value of a list.
struct Scalars<'a, T>(&'a T);

impl<T: Scalar> Serialize for Scalars<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write(to)
    }
}

/// Deserialises a list of texts. A single text needs no list.
struct OneOrMore<T>(PhantomData<T>);

impl<'de, T: Scalar> Visitor<'de> for OneOrMore<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("text in quotation marks, or a list of such texts")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![T::read(serde::de::value::StrDeserializer::new(text))?])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        struct Element<T>(PhantomData<T>);
        impl<'de, T: Scalar> DeserializeSeed<'de> for Element<T> {
            type Value = T;
            fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
                T::read(from)
            }
        }
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Element(PhantomData))? {
            values.push(value);
        }
        Ok(values)
    }
}

/// A size in bytes, such as `4096`, `64KiB` or `10GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&format_size(self.0))
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match parse_bytes(text) {
            Some(bytes) if bytes > 0 => Ok(Self(bytes)),
            _ => Err(format!("`{text}` is not a size; write 4096, 64KiB or 10GiB")),
        }
    }
}

/// A share in percent, such as `50%`: above 0 and at most 100.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percent(f64);

impl Percent {
    /// The share 50 %.
    pub const HALF: Self = Self(50.0);

    /// Returns the share as a fraction of 1.
    pub fn share(self) -> f64 {
        self.0 / 100.0
    }
}

impl Display for Percent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%').map(str::parse::<f64>) {
            Some(Ok(percent)) if percent > 0.0 && percent <= 100.0 => Ok(Self(percent)),
            _ => Err(format!("`{text}` is not a share above 0 and up to 100%; write 50% or 12.5%")),
        }
    }
}

/// A duration setting, written like `500ms`, `5s` or `1min`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval(pub Duration);

impl Display for Interval {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&humantime::format_duration(self.0).to_string().replace(' ', ""))
    }
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match humantime::parse_duration(text) {
            Ok(interval) => Ok(Self(interval)),
            Err(_) => Err(format!("`{text}` is not a duration; write 500ms, 5s or 1min")),
        }
    }
}

/// The setting for freezing the hottest pages in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freeze {
    /// No page is frozen.
    #[default]
    Off,
    /// Freezes pages as long as measurements show a gain.
    Adaptive,
}

impl Display for Freeze {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Adaptive => "adaptive",
        })
    }
}

impl FromStr for Freeze {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(Self::Off),
            "adaptive" => Ok(Self::Adaptive),
            _ => Err(format!("there is no way `{name}` to freeze; there are adaptive and off")),
        }
    }
}

/// A group of users, by name or number. A name must exist on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    name: String,
    /// Number of the group (GID).
    pub number: u32,
}

impl FromStr for Group {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unknown = |problem: String| format!("there is no group `{name}`{problem}");
        let number = match name.parse() {
            Ok(number) => number,
            Err(_) => match nix::unistd::Group::from_name(name) {
                Ok(Some(group)) => group.gid.as_raw(),
                Ok(None) => return Err(unknown(String::new())),
                Err(error) => return Err(unknown(format!(": {error}"))),
            },
        };
        Ok(Self { name: name.to_owned(), number })
    }
}

/// The driver that makes a volume a block device of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// The kernel's ublk driver.
    Ublk,
}

impl Display for Attach {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("ublk")
    }
}

impl FromStr for Attach {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "ublk" => Ok(Self::Ublk),
            _ => Err(format!("there is no way `{name}` to attach a volume; there is ublk")),
        }
    }
}

/// The size of a namespace's logical blocks: 512 bytes or 4 KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogicalBlock(pub BlockSize);

impl Display for LogicalBlock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&format_size(self.0.bytes()))
    }
}

impl FromStr for LogicalBlock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = parse_bytes(text).and_then(BlockSize::of);
        size.map(Self).ok_or_else(|| format!("`{text}` is not 512 or 4KiB"))
    }
}

/// An NVMe qualified name, such as `nqn.2026-11.com.example:cache`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nqn(String);

impl Nqn {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for Nqn {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        check_nqn(text)?;
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_written_as_it_is_read() {
        for text in ["50%", "12.5%", "100%", "0.01%"] {
            let percent: Percent = text.parse().unwrap();
            assert_eq!(percent.to_string(), text);
            assert!(percent.share() > 0.0 && percent.share() <= 1.0);
        }
        for wrong in ["", "%", "50", "0%", "100.1%", "-1%", "nan%", "inf%", "half"] {
            assert!(wrong.parse::<Percent>().is_err(), "{wrong}");
        }
    }
}
