//! Declares settings, and reads their values from files, options and requests.

use std::fmt::{self, Display, Formatter};
use std::marker::PhantomData;
use std::str::FromStr;

use floe_policy::registry::nearest;
use serde::de::value::{MapAccessDeserializer, SeqDeserializer, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

/// The declaration of a setting, from which help, manual pages and the reference are written.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub(super) field: &'static str,
    pub(super) help: &'static str,
    /// Placeholder for the value in help, such as `SIZE`.
    pub value: &'static str,
    /// Unit of the value; may be empty.
    pub unit: &'static str,
    /// Forms that the value may have, for help; may be empty.
    pub forms: &'static str,
    /// Default as help shows it; empty if the setting has no default.
    pub default: &'static str,
    /// Example of a value for users to start from; may be empty.
    pub example: &'static str,
    /// Link to the section of the guide that explains the setting; may be empty.
    pub guide: &'static str,
    /// Least and largest value of a number.
    pub range: Option<(u64, u64)>,
    /// Name of the command line option, if it differs from the name in a file.
    pub option: &'static str,
    /// True if the setting is also a command line option.
    pub is_option: bool,
    /// Value that the option has when given without one; `None` if it needs a value.
    pub bare: Option<&'static str>,
    /// True if `floe replay` has the setting, too.
    pub replayed: bool,
    /// Kind of the value.
    pub kind: SettingKind,
    /// True if the setting takes several values.
    pub is_list: bool,
}

/// The textual form of a type of settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Placeholder for a value in help.
    pub(crate) value: &'static str,
    pub(crate) unit: &'static str,
    /// Forms that a value may have, for help.
    pub(crate) forms: &'static str,
    pub(crate) kind: SettingKind,
    pub(crate) is_list: bool,
}

/// The kind of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// Text in quotation marks.
    Text,
    /// A whole number.
    Number,
    /// True or false; an option without a value on the command line.
    Flag,
}

impl Setting {
    pub(super) const fn new(field: &'static str, help: &'static str, form: Form) -> Self {
        Self {
            field,
            help,
            value: form.value,
            unit: form.unit,
            forms: form.forms,
            default: "",
            example: "",
            guide: "",
            range: None,
            option: "",
            is_option: true,
            bare: None,
            replayed: false,
            kind: form.kind,
            is_list: form.is_list,
        }
    }

    /// Returns the name of the setting in a file.
    pub fn name(&self) -> String {
        self.field.replace('_', "-")
    }

    /// Returns the name of the command line option.
    pub fn option(&self) -> String {
        if self.option.is_empty() { self.name() } else { self.option.to_owned() }
    }

    /// Returns the meaning of the setting, in a sentence without a full stop.
    pub fn meaning(&self) -> &'static str {
        self.help.trim()
    }

    /// Returns the help on the option: meaning, forms, example and default.
    pub fn help(&self) -> String {
        let Self { forms, example, default, .. } = self;
        let mut help = self.meaning().to_owned();
        for (before, text, after) in
            [(" (", forms, ")"), (" [example: ", example, "]"), (" [default: ", default, "]")]
        {
            if !text.is_empty() && self.kind != SettingKind::Flag {
                help = help + before + text + after;
            }
        }
        help.replace('`', "")
    }
}

/// Declares tables of settings. Each setting has documentation, which is its help as well, a field
/// name, a type, an optional initial value, and the other attributes of [`Setting`].
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])+
        $table:ident {
            $(
                $(#[doc = $help:literal])+
                $field:ident: $type:ty $(= $initial:literal)? {
                    $($attribute:ident: $value:expr),* $(,)?
                }
            )*
        }
    )*) => { $(
        $(#[doc = $about])+
        #[derive(Debug, Clone)]
        pub struct $table {
            $( $(#[doc = $help])+ pub $field: $type, )*
        }

        impl Default for $table {
            fn default() -> Self {
                Self { $( $field: settings!(@initial $($initial)?), )* }
            }
        }

        impl Table for $table {
            const SETTINGS: &'static [Setting] = &[$(
                Setting {
                    $($attribute: $value,)*
                    ..Setting::new(
                        stringify!($field),
                        concat!($($help),+),
                        <$type as Value>::FORM,
                    )
                },
            )*];

            fn take<'de, A: MapAccess<'de>>(
                &mut self,
                name: &str,
                map: &mut A,
            ) -> Result<bool, A::Error> {
                match name.replace('-', "_").as_str() {
                    $( stringify!($field) => self.$field = map.next_value_seed(Read::new())?, )*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn give<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                let mut settings = Self::SETTINGS.iter();
                $(
                    let setting = settings.next().expect("each field is a setting");
                    if self.$field.is_given() {
                        map.serialize_entry(&setting.name(), &Written(&self.$field))?;
                    }
                )*
                Ok(())
            }

            fn given(&self) -> Vec<String> {
                let given = [$( self.$field.is_given() ),*];
                let settings = Self::SETTINGS.iter().zip(given);
                settings.filter(|(_, given)| *given).map(|(setting, _)| setting.name()).collect()
            }

            fn out_of_range(&self) -> Option<(String, String)> {
                let numbers = [$( self.$field.number() ),*];
                Self::SETTINGS.iter().zip(numbers).find_map(|(setting, number)| {
                    let (name, (low, high)) = (setting.name(), setting.range?);
                    let number = number.filter(|number| !(low..=high).contains(number))?;
                    let problem = format!("{name} = {number} is not between {low} and {high}");
                    Some((name, problem))
                })
            }
        }
    )* };
    (@initial) => { Default::default() };
    (@initial $initial:literal) => { $initial };
}
pub(super) use settings;

/// Name of a setting and its values; a flag has no value.
pub type Given = (String, Vec<String>);

/// Reads a table of settings from names and values.
///
/// # Errors
/// The first problem, preceded by the setting's name.
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

/// Deserialises the values of a setting from their texts.
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
            Some(value) => Err(GivenError(format!("it takes no value, but {value:?} was given"))),
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

/// Deserialises the name of a setting, which must be one of the given names.
pub(super) struct Name<'a>(pub(super) &'a [String]);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<String, D::Error> {
        let name = String::deserialize(from)?;
        if self.0.contains(&name) {
            return Ok(name);
        }
        let hint = match nearest(&name, self.0.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`? There"),
            None => "there".to_owned(),
        };
        let names: Vec<_> = self.0.iter().map(|name| format!("`{name}`")).collect();
        let names = names.join(", ");
        Err(D::Error::custom(format!("unknown setting `{name}`; {hint} are {names}")))
    }
}

/// Deserialises a whole number.
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

/// Deserialises true or false.
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

/// Deserialises a type that is written as text. The error for a number suggests the right text.
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

#[cfg(test)]
mod names_tests {
    use crate::config::ServerConfig;

    #[test]
    fn a_misspelt_setting_is_told_from_an_unknown_one() {
        let unknown = |text: &str| toml::from_str::<ServerConfig>(text).unwrap_err().to_string();
        assert!(unknown("cach = 1").contains("did you mean `cache`?"));
        assert!(unknown("max-conections = 1").contains("did you mean `max-connections`?"));
        assert!(unknown("max_connections = 1").contains("did you mean `max-connections`?"));
        assert!(!unknown("colour = 1").contains("did you mean"));
    }
}
