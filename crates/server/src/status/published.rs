//! Counters as JSON: each under the name that its declaration gives it.

use std::fmt;
use std::ops::Deref;

use floe_block::{Counts, Declaration};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// The declaration of a whole whose fields have their own.
const WHOLE: &Declaration = &Declaration::internal("");

/// Counters whose published fields are fields of a JSON object; the others are not in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Published<T>(pub T);

impl<T> Deref for Published<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Counts> Published<T> {
    /// The fields, each with its value.
    pub fn fields(&self) -> Vec<(&'static Declaration, u64)> {
        let mut fields = Vec::new();
        self.0.each(WHOLE, &mut |field, value| {
            if !field.json.is_empty() {
                fields.push((field, value));
            }
        });
        fields
    }
}

impl<T: Counts> Serialize for Published<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields();
        let mut map = serializer.serialize_map(Some(fields.len()))?;
        for (field, value) in fields {
            map.serialize_entry(field.json, &value)?;
        }
        map.end()
    }
}

/// Fields that are not there are 0: a server of an older version counts less.
impl<'de, T: Counts + Default> Deserialize<'de> for Published<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(T);

        impl<'de, T: Counts> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("counters")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<T, A::Error> {
                while let Some(name) = map.next_key::<String>()? {
                    let mut is_ours = false;
                    self.0.each_mut(WHOLE, &mut |field, _| is_ours |= field.json == name);
                    if !is_ours {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let read: u64 = map.next_value()?;
                    self.0.each_mut(WHOLE, &mut |field, value| {
                        if field.json == name {
                            *value = read;
                        }
                    });
                }
                Ok(self.0)
            }
        }

        deserializer.deserialize_map(Fields(T::default())).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use floe_block::Stats;
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Around {
        name: String,
        #[serde(flatten)]
        stats: Published<Stats>,
    }

    #[test]
    fn counters_are_fields_of_the_object_around_them() {
        let mut stats = Stats { dirty_bytes: 4096, held_bytes: 7, ..Stats::default() };
        (stats.requests.reads, stats.counters.restarts) = (5, 9);
        let around = Around { name: "a".to_owned(), stats: Published(stats) };
        let json = serde_json::to_value(&around).expect("it is JSON");
        assert_eq!((&json["read_requests"], &json["dirty_bytes"]), (&5.into(), &4096.into()));
        assert!(json.get("restarts").is_none() && json.get("held_bytes").is_none());
        let read: Around = serde_json::from_value(json).expect("it was written so");
        assert_eq!((read.stats.requests.reads, read.stats.dirty_bytes), (5, 4096));
        assert_eq!((read.stats.counters.restarts, read.stats.held_bytes), (0, 0));
        let older: Around = serde_json::from_str(r#"{"name":"b","x":[1]}"#).expect("it is enough");
        assert_eq!(older.stats, Published::default());
    }
}
