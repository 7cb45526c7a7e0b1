//! JSON: messages as proto3 writes them, for callers of `/json`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json, json};

use crate::proto::{
    Descriptor, DescriptorStatus, Entry, Kind, RateLimitOverride, RateLimitRequest,
    RateLimitResponse, RateLimitUnit, Struct, UInt64Value, Value,
};

/// Reads a request.
///
/// # Errors
/// Why it is none.
pub fn read_request(bytes: &[u8]) -> Result<RateLimitRequest, String> {
    let request: JsonRequest = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let descriptors = request.descriptors.into_iter().map(|one| {
        let entries = one.entries.into_iter();
        Descriptor {
            entries: entries
                .map(|JsonEntry { key, value }| Entry { key, value })
                .collect(),
            limit: one.limit.map(|limit| RateLimitOverride {
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit,
            }),
            hits_addend: one.hits_addend.map(|Number(value)| UInt64Value { value }),
            is_negative_hits: one.is_negative_hits,
        }
    });
    Ok(RateLimitRequest {
        domain: request.domain,
        descriptors: descriptors.collect(),
        hits_addend: request.hits_addend,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonRequest {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<JsonDescriptor>,
    #[serde(default, alias = "hits_addend", deserialize_with = "small")]
    hits_addend: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonDescriptor {
    #[serde(default)]
    entries: Vec<JsonEntry>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonLimit {
    #[serde(default, alias = "requests_per_unit", deserialize_with = "small")]
    requests_per_unit: u32,
    #[serde(default, deserialize_with = "unit")]
    unit: i32,
}

/// A number, also as text, as proto3 writes those of 64 bits.
struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = match Json::deserialize(from)? {
            Json::Number(number) => number.as_u64(),
            Json::String(text) => text.parse().ok(),
            _ => None,
        };
        let number =
            number.ok_or_else(|| D::Error::custom("write a whole number of at least 0"))?;
        Ok(Self(number))
    }
}

fn small<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let Number(number) = Number::deserialize(from)?;
    u32::try_from(number).map_err(|_| D::Error::custom("write a number up to 4294967295"))
}

fn unit<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
    let unit = match Json::deserialize(from)? {
        Json::String(name) => RateLimitUnit::from_str_name(&name).map(i32::from),
        Json::Number(number) => number
            .as_i64()
            .and_then(|number| i32::try_from(number).ok()),
        _ => None,
    };
    unit.ok_or_else(|| D::Error::custom("write a unit such as MINUTE"))
}

/// Writes a response. Numbers that are 0 are left out.
#[must_use]
pub fn write_response(response: &RateLimitResponse) -> String {
    let mut fields = Map::new();
    let mut add = |name: &str, value: Json| fields.insert(name.to_owned(), value);
    add("overallCode", json!(response.overall_code().as_str_name()));
    if !response.statuses.is_empty() {
        add("statuses", response.statuses.iter().map(status).collect());
    }
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|one| json!({ "key": one.key, "value": one.value }));
        add("responseHeadersToAdd", headers.collect());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        add("dynamicMetadata", structure(metadata));
    }
    Json::Object(fields).to_string()
}

fn status(status: &DescriptorStatus) -> Json {
    let mut fields = Map::new();
    let mut add = |name: &str, value: Json| fields.insert(name.to_owned(), value);
    add("code", json!(status.code().as_str_name()));
    if let Some(limit) = &status.current_limit {
        let mut current = Map::new();
        let mut add_number = |name: &str, value: Json| current.insert(name.to_owned(), value);
        if !limit.name.is_empty() {
            add_number("name", json!(limit.name));
        }
        if limit.requests_per_unit > 0 {
            add_number("requestsPerUnit", json!(limit.requests_per_unit));
        }
        add_number("unit", json!(limit.unit().as_str_name()));
        add("currentLimit", Json::Object(current));
    }
    if status.limit_remaining > 0 {
        add("limitRemaining", json!(status.limit_remaining));
    }
    if let Some(until) = &status.duration_until_reset {
        let nanos = format!("{:09}", until.nanos);
        let fraction = match nanos.trim_end_matches('0') {
            "" => String::new(),
            digits => format!(".{digits:0<width$}", width = digits.len().div_ceil(3) * 3),
        };
        add(
            "durationUntilReset",
            json!(format!("{}{fraction}s", until.seconds)),
        );
    }
    Json::Object(fields)
}

fn structure(from: &Struct) -> Json {
    let fields = from.fields.iter();
    fields
        .map(|(name, value)| (name.clone(), any(value)))
        .collect()
}

fn any(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(value)) => json!(value),
        Some(Kind::NumberValue(value)) => json!(value),
        Some(Kind::StringValue(value)) => json!(value),
        Some(Kind::ListValue(list)) => list.values.iter().map(any).collect(),
        Some(Kind::StructValue(value)) => structure(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Code, Duration, RateLimit, Unit};

    #[test]
    fn requests_are_read_in_both_spellings() {
        let text = br#"{"domain": "d", "hits_addend": 2, "descriptors": [
            {"entries": [{"key": "a", "value": "b"}], "hitsAddend": "7",
             "limit": {"requestsPerUnit": 5, "unit": "MINUTE"}},
            {"entries": [{"key": "c"}], "is_negative_hits": true}]}"#;
        let request = read_request(text).unwrap();
        assert_eq!((&*request.domain, request.hits_addend), ("d", 2));
        let [first, second] = &*request.descriptors else {
            panic!("{request:?}");
        };
        assert_eq!(first.hits_addend, Some(UInt64Value { value: 7 }));
        let limit = first.limit.as_ref().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit), (5, 2));
        assert!(second.is_negative_hits && second.entries[0].value.is_empty());
        for (wrong, expected) in [
            (&b"{"[..], "EOF"),
            (br#"{"domains": 1}"#, "unknown field `domains`"),
            (br#"{"hitsAddend": -1}"#, "write a whole number"),
            (br#"{"hitsAddend": "4294967296"}"#, "up to 4294967295"),
            (
                br#"{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#,
                "write a unit such as MINUTE",
            ),
        ] {
            let error = read_request(wrong).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn responses_are_written_as_proto3_does() {
        let status = DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit {
                name: String::new(),
                requests_per_unit: 20,
                unit: Unit::Minute.into(),
            }),
            duration_until_reset: Some(Duration {
                seconds: 12,
                nanos: 500_000_000,
            }),
            ..DescriptorStatus::default()
        };
        let response = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![status],
            ..RateLimitResponse::default()
        };
        let expected = r#"{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT","currentLimit":{"requestsPerUnit":20,"unit":"MINUTE"},"durationUntilReset":"12.500s"}]}"#;
        let written: Json = serde_json::from_str(&write_response(&response)).unwrap();
        assert_eq!(written, serde_json::from_str::<Json>(expected).unwrap());
    }
}
