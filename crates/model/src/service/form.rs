//! The file form of service times: JSON with a version.

use serde::de::{Error, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Service, Time, Times};

/// A time as an object with all its fields.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InFull {
    alone: f64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    contended: Vec<(u32, f64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    histogram: Vec<(f64, f64)>,
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Time { alone_us, contended, histogram } = self;
        if contended.is_empty() && histogram.is_empty() {
            return to.serialize_f64(*alone_us);
        }
        let (contended, histogram) = (contended.clone(), histogram.clone());
        InFull { alone: *alone_us, contended, histogram }.serialize(to)
    }
}

/// Deserializer of a time from a plain number or an object with all fields.
struct InEitherForm;

impl<'de> Visitor<'de> for InEitherForm {
    type Value = Time;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a time in µs, or an object with `alone`, `contended` and `histogram`")
    }

    fn visit_f64<E: Error>(self, us: f64) -> Result<Time, E> {
        Ok(Time::of(us))
    }

    fn visit_u64<E: Error>(self, us: u64) -> Result<Time, E> {
        Ok(Time::of(us as f64))
    }

    fn visit_i64<E: Error>(self, us: i64) -> Result<Time, E> {
        Ok(Time::of(us as f64))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Time, A::Error> {
        let InFull { alone, contended, histogram } =
            InFull::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Time { alone_us: alone, contended, histogram })
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(InEitherForm)
    }
}

/// The file with its version, machine and policies.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    floe_service: u32,
    #[serde(default)]
    machine: std::collections::BTreeMap<String, String>,
    policies: Vec<Times>,
}

impl Serialize for Service {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Service { machine, policies } = self.clone();
        File { floe_service: Service::VERSION, machine, policies }.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Service {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let File { floe_service, machine, policies } = File::deserialize(from)?;
        if floe_service != Service::VERSION {
            let known = Service::VERSION;
            return Err(D::Error::custom(format!(
                "floe_service is {floe_service}; only {known} is known"
            )));
        }
        let service = Service { machine, policies };
        service.check().map_err(D::Error::custom)?;
        Ok(service)
    }
}
