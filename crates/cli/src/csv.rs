//! Results as a table in CSV (RFC 4180), for spreadsheets and data frames.
//!
//! The columns are the fields that the results have in JSON, in their order; the fields of an
//! object within a result have names such as `admission.offered_blocks`. A field that a result
//! lacks is an empty cell, and a list is its JSON.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Error, Serialize};
use serde_json::Value;

/// The fields of a result in their order.
struct Fields(Vec<(String, Cell)>);

/// The value of a field.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Cell {
    Object(Fields),
    Other(Value),
}

/// Returns results as CSV, with a header.
pub(crate) fn csv<T: Serialize>(results: &[T]) -> serde_json::Result<String> {
    let mut columns: Vec<String> = Vec::new();
    let mut rows = Vec::new();
    for result in results {
        let fields: Fields = serde_json::from_str(&serde_json::to_string(result)?)?;
        let mut row = Vec::new();
        fields.flatten("", &mut row);
        let mut after = 0;
        for (name, _) in &row {
            // A field that earlier results lack comes behind the one before it.
            after = match columns.iter().position(|column| column == name) {
                Some(at) => at + 1,
                None => {
                    columns.insert(after, name.clone());
                    after + 1
                }
            };
        }
        rows.push(row);
    }
    if columns.is_empty() {
        return Err(serde_json::Error::custom("there are no results"));
    }
    let mut text = line(columns.iter().map(String::as_str));
    for row in &rows {
        let cell = |column: &String| row.iter().find(|(name, _)| name == column);
        text += &line(columns.iter().map(|column| cell(column).map_or("", |(_, cell)| cell)));
    }
    Ok(text)
}

impl Fields {
    fn flatten(self, before: &str, row: &mut Vec<(String, String)>) {
        for (name, cell) in self.0 {
            let name = format!("{before}{name}");
            match cell {
                Cell::Object(fields) => fields.flatten(&(name + "."), row),
                Cell::Other(Value::Null) => row.push((name, String::new())),
                Cell::Other(Value::String(text)) => row.push((name, text)),
                Cell::Other(value) => row.push((name, value.to_string())),
            }
        }
    }
}

/// Returns a line, with quotation marks around cells that need them.
fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    let quoted = |cell: &str| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    cells.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Ordered;
        impl<'de> Visitor<'de> for Ordered {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields, M::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        from.deserialize_map(Ordered)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(serde::Serialize)]
    struct Result {
        policy: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        admission: Option<Inner>,
        hits: u64,
        list: Vec<u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        last: Option<f64>,
    }

    #[derive(serde::Serialize)]
    struct Inner {
        name: &'static str,
        share: f64,
    }

    #[test]
    fn columns_keep_the_order_of_fields_and_take_in_those_that_some_lack() {
        let plain =
            Result { policy: "lru", admission: None, hits: 5, list: vec![], last: Some(0.5) };
        let inner = Inner { name: "a \"b\"", share: 0.25 };
        let other =
            Result { policy: "x,y", admission: Some(inner), hits: 6, list: vec![1, 2], last: None };
        let expected = "policy,admission.name,admission.share,hits,list,last\n\
                        lru,,,5,[],0.5\n\
                        \"x,y\",\"a \"\"b\"\"\",0.25,6,\"[1,2]\",\n";
        assert_eq!(csv(&[plain, other]).unwrap(), expected);
    }

    #[test]
    fn what_is_no_object_is_no_row() {
        assert!(csv(&[json!(5)]).is_err());
        assert_eq!(csv(&[json!({"a": null, "b": true})]).unwrap(), "a,b\n,true\n");
    }
}
