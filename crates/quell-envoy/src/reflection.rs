//! Reflection: descriptors of the service and of the messages that it uses, for clients that have no `.proto` files.
//!
//! Names and numbers are Envoy's; a file has the messages of the service alone, without `quota`, which Envoy does not
//! implement. `envoy-types` exports no descriptors: a test compares these with what it encodes.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto,
    OneofDescriptorProto, ServiceDescriptorProto,
};

use crate::proto::{Code, NullValue, RateLimitUnit, Unit};

const BASE: &str = "envoy/config/core/v3/base.proto";
const DESCRIPTOR: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";
const DURATION: &str = "google/protobuf/duration.proto";
const STRUCT: &str = "google/protobuf/struct.proto";
const UNIT: &str = "envoy/type/v3/ratelimit_unit.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";

/// The files of the service, each after those that it imports.
#[must_use]
pub fn file_descriptors() -> FileDescriptorSet {
    let duration = message("Duration", &["int64 seconds", "int32 nanos"]);
    let wrapper = message("UInt64Value", &["uint64 value"]);
    let header = message(
        "HeaderValue",
        &["string key", "string value", "bytes raw_value"],
    );
    let units = enumeration("RateLimitUnit", RateLimitUnit::as_str_name);
    let google = |name, messages| file(name, "google.protobuf", &[], messages);
    let mut units_file = file(UNIT, "envoy.type.v3", &[], vec![]);
    units_file.enum_type.push(units);
    let file = vec![
        google(DURATION, vec![duration]),
        google(WRAPPERS, vec![wrapper]),
        structs(google(STRUCT, vec![])),
        units_file,
        file(BASE, "envoy.config.core.v3", &[], vec![header]),
        descriptor(),
        service(),
    ];
    FileDescriptorSet { file }
}

fn service() -> FileDescriptorProto {
    let request = [
        "string domain",
        "repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor descriptors",
        "uint32 hits_addend",
    ];
    let response = [
        "enum .envoy.service.ratelimit.v3.RateLimitResponse.Code overall_code",
        "repeated .envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus statuses",
        "repeated .envoy.config.core.v3.HeaderValue response_headers_to_add",
        "repeated .envoy.config.core.v3.HeaderValue request_headers_to_add",
        "bytes raw_body",
        ".google.protobuf.Struct dynamic_metadata",
    ];
    let status = [
        "enum .envoy.service.ratelimit.v3.RateLimitResponse.Code code",
        ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit current_limit",
        "uint32 limit_remaining",
        ".google.protobuf.Duration duration_until_reset",
    ];
    let limit = [
        "uint32 requests_per_unit",
        "enum .envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit unit",
        "string name",
    ];
    let (mut limit, status) = (
        message("RateLimit", &limit),
        message("DescriptorStatus", &status),
    );
    limit.enum_type.push(enumeration("Unit", Unit::as_str_name));
    let mut response = message("RateLimitResponse", &response);
    response.nested_type = vec![limit, status];
    response
        .enum_type
        .push(enumeration("Code", Code::as_str_name));
    let messages = vec![message("RateLimitRequest", &request), response];
    let imports = [BASE, DESCRIPTOR, DURATION, STRUCT];
    let name = "envoy/service/ratelimit/v3/rls.proto";
    let mut file = file(name, "envoy.service.ratelimit.v3", &imports, messages);
    file.service.push(ServiceDescriptorProto {
        name: some("RateLimitService"),
        method: vec![MethodDescriptorProto {
            name: some("ShouldRateLimit"),
            input_type: some(".envoy.service.ratelimit.v3.RateLimitRequest"),
            output_type: some(".envoy.service.ratelimit.v3.RateLimitResponse"),
            ..MethodDescriptorProto::default()
        }],
        options: None,
    });
    file
}

fn descriptor() -> FileDescriptorProto {
    let fields = [
        "repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry entries",
        ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride limit",
        ".google.protobuf.UInt64Value hits_addend",
        "bool is_negative_hits",
    ];
    let limit = [
        "uint32 requests_per_unit",
        "enum .envoy.type.v3.RateLimitUnit unit",
    ];
    let mut descriptor = message("RateLimitDescriptor", &fields);
    descriptor.nested_type = vec![
        message("Entry", &["string key", "string value"]),
        message("RateLimitOverride", &limit),
    ];
    let package = "envoy.extensions.common.ratelimit.v3";
    file(DESCRIPTOR, package, &[UNIT, WRAPPERS], vec![descriptor])
}

/// Adds JSON as messages.
fn structs(mut file: FileDescriptorProto) -> FileDescriptorProto {
    let kinds = [
        "oneof enum .google.protobuf.NullValue null_value",
        "oneof double number_value",
        "oneof string string_value",
        "oneof bool bool_value",
        "oneof .google.protobuf.Struct struct_value",
        "oneof .google.protobuf.ListValue list_value",
    ];
    let mut value = message("Value", &kinds);
    value.oneof_decl.push(OneofDescriptorProto {
        name: some("kind"),
        options: None,
    });
    let mut entry = message(
        "FieldsEntry",
        &["string key", ".google.protobuf.Value value"],
    );
    entry.options = Some(MessageOptions {
        map_entry: Some(true),
        ..MessageOptions::default()
    });
    let fields = ["repeated .google.protobuf.Struct.FieldsEntry fields"];
    let mut object = message("Struct", &fields);
    object.nested_type.push(entry);
    let list = message("ListValue", &["repeated .google.protobuf.Value values"]);
    file.message_type = vec![object, value, list];
    file.enum_type
        .push(enumeration("NullValue", NullValue::as_str_name));
    file
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn file(
    name: &str,
    package: &str,
    imports: &[&str],
    messages: Vec<DescriptorProto>,
) -> FileDescriptorProto {
    FileDescriptorProto {
        name: some(name),
        package: some(package),
        dependency: imports.iter().map(|name| (*name).to_owned()).collect(),
        message_type: messages,
        syntax: some("proto3"),
        ..FileDescriptorProto::default()
    }
}

/// A message with these fields, numbered from 1.
fn message(name: &str, fields: &[&str]) -> DescriptorProto {
    DescriptorProto {
        name: some(name),
        field: (1..)
            .zip(fields)
            .map(|(number, text)| field(number, text))
            .collect(),
        ..DescriptorProto::default()
    }
}

/// A field from its type and name, as in a `.proto` file; `oneof` and `enum` before them say what else it is.
fn field(number: i32, text: &str) -> FieldDescriptorProto {
    let mut words = text.rsplit(' ');
    let (name, kind) = (words.next(), words.next().unwrap_or_default());
    let (mut is_enum, mut is_in_oneof, mut label) = (false, false, Label::Optional);
    for word in words {
        match word {
            "enum" => is_enum = true,
            "oneof" => is_in_oneof = true,
            _ => label = Label::Repeated,
        }
    }
    let is_named = kind.starts_with('.');
    let plain = Type::from_str_name(&format!("TYPE_{}", kind.to_ascii_uppercase()));
    FieldDescriptorProto {
        name: name.and_then(some),
        number: Some(number),
        label: Some(label.into()),
        r#type: Some(
            plain
                .unwrap_or(if is_enum { Type::Enum } else { Type::Message })
                .into(),
        ),
        type_name: is_named.then(|| kind.to_owned()),
        oneof_index: is_in_oneof.then_some(0),
        ..FieldDescriptorProto::default()
    }
}

/// An enumeration of `envoy-types`, whose numbers have no gap.
fn enumeration<E: TryFrom<i32>>(
    name: &str,
    name_of: fn(&E) -> &'static str,
) -> EnumDescriptorProto {
    let values = (0..).map_while(|number| Some((number, E::try_from(number).ok()?)));
    let values = values.map(|(number, value)| EnumValueDescriptorProto {
        name: some(name_of(&value)),
        number: Some(number),
        options: None,
    });
    EnumDescriptorProto {
        name: some(name),
        value: values.collect(),
        ..EnumDescriptorProto::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use prost::encoding::{WireType, decode_key, decode_varint};

    use super::*;
    use crate::proto::{
        self, Descriptor, DescriptorStatus, Entry, HeaderValue, Kind, ListValue, Message,
        RateLimit, RateLimitOverride, RateLimitRequest, RateLimitResponse, Struct, UInt64Value,
        Value,
    };

    /// All messages and enumerations, by their full names.
    #[derive(Default)]
    struct Names {
        messages: BTreeMap<String, DescriptorProto>,
        enums: BTreeMap<String, EnumDescriptorProto>,
        /// Fields that were on the wire.
        seen: BTreeSet<String>,
    }

    impl Names {
        fn new() -> Self {
            let mut names = Self::default();
            for file in file_descriptors().file {
                let package = format!(".{}", file.package());
                names.add_enums(&package, &file.enum_type);
                names.add(&package, &file.message_type);
            }
            names
        }

        fn add(&mut self, scope: &str, messages: &[DescriptorProto]) {
            for message in messages {
                let name = format!("{scope}.{}", message.name());
                self.add_enums(&name, &message.enum_type);
                self.add(&name, &message.nested_type);
                self.messages.insert(name, message.clone());
            }
        }

        fn add_enums(&mut self, scope: &str, enums: &[EnumDescriptorProto]) {
            for one in enums {
                self.enums
                    .insert(format!("{scope}.{}", one.name()), one.clone());
            }
        }

        /// The message as text, by its descriptor.
        fn show(&mut self, name: &str, mut bytes: &[u8]) -> String {
            let message = self.messages[name].clone();
            let mut shown = Vec::new();
            while !bytes.is_empty() {
                let (number, wire) = decode_key(&mut bytes).unwrap();
                let mut fields = message.field.iter();
                let field = fields.find(|field| field.number() == i32::try_from(number).unwrap());
                let field = field.unwrap_or_else(|| panic!("{name} has no field {number}"));
                self.seen.insert(format!("{name} {}", field.name()));
                let value = self.show_value(field, wire, &mut bytes);
                shown.push(format!("{} {value}", field.name()));
            }
            shown.join(", ")
        }

        fn show_value(
            &mut self,
            field: &FieldDescriptorProto,
            wire: WireType,
            bytes: &mut &[u8],
        ) -> String {
            let expected = match field.r#type() {
                Type::Double => WireType::SixtyFourBit,
                Type::String | Type::Bytes | Type::Message => WireType::LengthDelimited,
                _ => WireType::Varint,
            };
            assert_eq!(wire, expected, "{field:?}");
            if wire == WireType::SixtyFourBit {
                let number = bytes.split_off(..8).unwrap();
                return f64::from_le_bytes(number.try_into().unwrap()).to_string();
            }
            let number = decode_varint(bytes).unwrap();
            match field.r#type() {
                Type::Enum => {
                    let mut values = self.enums[field.type_name()].value.iter();
                    let value = values
                        .find(|one| one.number().unsigned_abs() == u32::try_from(number).unwrap());
                    value.unwrap().name().to_owned()
                }
                kind @ (Type::String | Type::Bytes | Type::Message) => {
                    let body = bytes.split_off(..usize::try_from(number).unwrap()).unwrap();
                    match kind {
                        Type::Message => format!("{{{}}}", self.show(field.type_name(), body)),
                        _ => format!("{:?}", str::from_utf8(body).unwrap()),
                    }
                }
                _ => number.to_string(),
            }
        }
    }

    fn request() -> RateLimitRequest {
        RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: vec![Descriptor {
                entries: vec![Entry {
                    key: "k".to_owned(),
                    value: "v".to_owned(),
                }],
                limit: Some(RateLimitOverride {
                    requests_per_unit: 5,
                    unit: RateLimitUnit::Year.into(),
                }),
                hits_addend: Some(UInt64Value { value: 7 }),
                is_negative_hits: true,
            }],
            hits_addend: 3,
        }
    }

    fn header(key: &str) -> Vec<HeaderValue> {
        vec![HeaderValue {
            key: key.to_owned(),
            value: "b".to_owned(),
            raw_value: b"c".to_vec(),
        }]
    }

    fn response(kind: Kind) -> RateLimitResponse {
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                name: "n".to_owned(),
                requests_per_unit: 9,
                unit: Unit::Week.into(),
            }),
            limit_remaining: 8,
            duration_until_reset: Some(proto::Duration {
                seconds: 6,
                nanos: 5,
            }),
            quota: None,
        };
        let value = Value { kind: Some(kind) };
        RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![status],
            response_headers_to_add: header("a"),
            request_headers_to_add: header("z"),
            raw_body: b"body".to_vec(),
            dynamic_metadata: Some(Struct {
                fields: [("f".to_owned(), value)].into(),
            }),
            quota: None,
        }
    }

    #[test]
    fn descriptors_read_what_is_encoded() {
        let mut names = Names::new();
        let shown = names.show(
            ".envoy.service.ratelimit.v3.RateLimitRequest",
            &request().encode_to_vec(),
        );
        let descriptor = "entries {key \"k\", value \"v\"}, limit {requests_per_unit 5, unit YEAR}, \
                          hits_addend {value 7}, is_negative_hits 1";
        let expected = format!("domain \"d\", descriptors {{{descriptor}}}, hits_addend 3");
        assert_eq!(shown, expected);
        let status = "code OK, current_limit {requests_per_unit 9, unit WEEK, name \"n\"}, limit_remaining 8, \
                      duration_until_reset {seconds 6, nanos 5}";
        let header = |key| format!("{{key \"{key}\", value \"b\", raw_value \"c\"}}");
        let text = Kind::StringValue("s".to_owned());
        let list = ListValue {
            values: vec![Value {
                kind: Some(text.clone()),
            }],
        };
        for (kind, value) in [
            (Kind::NullValue(0), "null_value NULL_VALUE"),
            (Kind::NumberValue(1.5), "number_value 1.5"),
            (text, "string_value \"s\""),
            (Kind::BoolValue(true), "bool_value 1"),
            (Kind::StructValue(Struct::default()), "struct_value {}"),
            (
                Kind::ListValue(list),
                "list_value {values {string_value \"s\"}}",
            ),
        ] {
            let shown = names.show(
                ".envoy.service.ratelimit.v3.RateLimitResponse",
                &response(kind).encode_to_vec(),
            );
            let expected = format!(
                "overall_code OVER_LIMIT, statuses {{{status}}}, response_headers_to_add {}, \
                 request_headers_to_add {}, raw_body \"body\", dynamic_metadata {{fields {{key \"f\", value \
                 {{{value}}}}}}}",
                header("a"),
                header("z"),
            );
            assert_eq!(shown, expected);
        }
        let all = names.messages.iter().flat_map(|(name, message)| {
            let fields = message.field.iter();
            fields.map(move |field| format!("{name} {}", field.name()))
        });
        assert_eq!(names.seen, all.collect(), "each field was on the wire");
    }

    /// A client reads files one after the other, each after its imports.
    #[test]
    fn files_import_the_messages_that_they_use() {
        let mut before = BTreeMap::<String, String>::new();
        for file in file_descriptors().file {
            let mut names = Names::default();
            let package = format!(".{}", file.package());
            names.add_enums(&package, &file.enum_type);
            names.add(&package, &file.message_type);
            let own = names.messages.keys().chain(names.enums.keys());
            before.extend(own.map(|name| (name.clone(), file.name().to_owned())));
            let fields = names.messages.values().flat_map(|message| &message.field);
            let used = fields.filter_map(|field| field.type_name.as_ref());
            let mut used: BTreeSet<&str> = used.map(|name| before[name].as_str()).collect();
            used.remove(file.name());
            let imports: BTreeSet<&str> = file.dependency.iter().map(String::as_str).collect();
            assert_eq!(used, imports, "{}", file.name());
        }
    }
}
