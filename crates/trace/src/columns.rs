//! The roles of a table's columns, where its header does not say them:
//! `time=when,key=obj,time-unit=ms`.

use std::str::FromStr;

/// The roles of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Time,
    Key,
    Offset,
    Size,
    Op,
    Volume,
}

/// All roles, each at the index that it is as a number.
pub(crate) const ROLES: [Role; 6] =
    [Role::Time, Role::Key, Role::Offset, Role::Size, Role::Op, Role::Volume];

impl Role {
    fn name(self) -> &'static str {
        ["time", "key", "offset", "size", "op", "volume"][self as usize]
    }
}

/// The units of a column of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    S,
    Ms,
    Us,
    /// 100 ns, as Windows does.
    FileTime,
    Ns,
}

impl TimeUnit {
    pub(crate) const ALL: [(&'static str, Self); 5] = [
        ("s", Self::S),
        ("ms", Self::Ms),
        ("us", Self::Us),
        ("100ns", Self::FileTime),
        ("ns", Self::Ns),
    ];

    /// Decimal digits from this unit down to a nanosecond.
    pub(crate) fn digits(self) -> u32 {
        match self {
            Self::S => 9,
            Self::Ms => 6,
            Self::Us => 3,
            Self::FileTime => 2,
            Self::Ns => 0,
        }
    }

    /// The unit in which a time since 1970 (or 1601, on Windows) has so many digits; seconds where
    /// it has fewer.
    pub(crate) fn likely(text: &[u8]) -> Self {
        match text.iter().take_while(|b| b.is_ascii_digit()).count() {
            19.. => Self::Ns,
            18 => Self::FileTime,
            15..=17 => Self::Us,
            12..=14 => Self::Ms,
            _ => Self::S,
        }
    }
}

/// Names of a table's columns, and their units, where its header does not tell by itself.
///
/// Parses from pairs such as `time=when,time-unit=ms,key=obj,size=kb,size-unit=1024`. Roles are
/// `time`, `key`, `offset`, `size`, `op` and `volume`, each with the name of a column in the
/// header, or all with numbers of columns from 1, which needs none; `time-unit` is `s`, `ms`, `us`,
/// `100ns` or `ns`, and `offset-unit` and `size-unit` are
/// bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    names: [Option<String>; ROLES.len()],
    pub(crate) time_unit: Option<TimeUnit>,
    pub(crate) offset_unit_bytes: Option<u64>,
    pub(crate) size_unit_bytes: Option<u64>,
}

/// Why a text names no columns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnsError {
    /// There is nothing of this name to set.
    #[error("there is no {name:?} to set; there are {SETTINGS}")]
    Unknown {
        /// The name of the setting.
        name: String,
    },
    /// A setting is not what it should be.
    #[error("{name}: expected {expected}, found {found:?}")]
    Value {
        /// The setting.
        name: String,
        /// The expected value.
        expected: &'static str,
        /// The value that was found.
        found: String,
    },
    /// A table is read as objects or as disk I/O.
    #[error("key and offset exclude each other: a key makes objects, an offset disk I/O")]
    KeyAndOffset,
}

const SETTINGS: &str = "time, key, offset, size, op, volume, time-unit, offset-unit, size-unit";

impl Columns {
    pub(crate) fn name(&self, role: Role) -> Option<&str> {
        self.names[role as usize].as_deref()
    }

    /// The number of a role's column, counted from 1, where its name is one.
    pub(crate) fn number(&self, role: Role) -> Option<usize> {
        self.name(role).and_then(|name| name.parse().ok()).filter(|&number| number > 0)
    }

    /// Returns whether all columns are named by their numbers, so that no header is needed.
    pub(crate) fn are_numbers(&self) -> bool {
        let mut named = ROLES.into_iter().filter(|&role| self.name(role).is_some()).peekable();
        named.peek().is_some() && named.all(|role| self.number(role).is_some())
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), ColumnsError> {
        let wrong = |expected| ColumnsError::Value {
            name: name.to_owned(),
            expected,
            found: value.to_owned(),
        };
        let unit = || {
            value.parse().ok().filter(|&bytes| bytes > 0).ok_or_else(|| wrong("a number of bytes"))
        };
        if let Some(role) = ROLES.into_iter().find(|role| role.name() == name) {
            let name = Some(value.to_owned()).filter(|name| !name.is_empty());
            self.names[role as usize] = Some(name.ok_or_else(|| wrong("the name of a column"))?);
            return Ok(());
        }
        match name {
            "time-unit" => {
                let unit = TimeUnit::ALL.into_iter().find(|(name, _)| *name == value);
                self.time_unit = Some(unit.ok_or_else(|| wrong("s, ms, us, 100ns or ns"))?.1);
            }
            "offset-unit" => self.offset_unit_bytes = Some(unit()?),
            "size-unit" => self.size_unit_bytes = Some(unit()?),
            _ => return Err(ColumnsError::Unknown { name: name.to_owned() }),
        }
        Ok(())
    }
}

impl FromStr for Columns {
    type Err = ColumnsError;

    fn from_str(text: &str) -> Result<Self, ColumnsError> {
        let mut columns = Self::default();
        for pair in text.split(',') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            columns.set(name.trim(), value.trim())?;
        }
        match (columns.name(Role::Key), columns.name(Role::Offset)) {
            (Some(_), Some(_)) => Err(ColumnsError::KeyAndOffset),
            _ => Ok(columns),
        }
    }
}
