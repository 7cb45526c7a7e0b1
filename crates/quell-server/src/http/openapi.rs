//! OpenAPI: the description of all routes, of the types of their bodies and of the tables below.
//!
//! The server has it as `openapi.json`, which the test below keeps:
//! `QUELL_UPDATE_DOCS=1 cargo test -p quell-server --lib openapi` writes it anew. Sentences of schemas are the comments
//! of their types.

use std::path::Path;

use quell_core::hold::{MAX_HOLD, MAX_ID};
use quell_core::query_bounds::{DEFAULT_HOLD, MAX_DESCRIPTORS, MAX_ENTRIES, MAX_WAIT};
use quell_protocol::http::{
    BansBody, BatchBody, CandidateBody, CandidateRequest, ChangedBody, DeletedOverridesBody,
    EndBody, EndedBody, HoldsBody, KeyRequest, OverriddenKeyBody, OverrideRecordBody,
    OverridesBody, Problem, StartedBody, StoppedBody, TopBody, VerdictBody,
};
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde::Serialize as _;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::{Map, Value, json};

use super::health::HealthBody;
use super::rule_routes::RulesBody;
use super::{admin, override_routes, top};
use crate::shared::MAX_BANS;

const BAD_BODY: &str = "The body or a parameter is wrong; the detail says what to write.";
const BAD_PARAMETER: &str = "A parameter is wrong.";
const FOREIGN_HOST: &str = "The Host is a name that this server is not asked by (--allow-host).";
const NO_DOMAIN: &str = "No such domain or rule.";
const OTHER_LISTENER: &str =
    "Administration has a listener of its own (--admin), and this is not it.";
const STORE_FAILED: &str = "The store gives no answer, or is overloaded (urn:quell:problem:store-overloaded): ask \
    again when Retry-After says.";
const UNDECLARED: &str = "The store gives no answer and no on_failure is declared, or it is overloaded \
    (urn:quell:problem:store-overloaded); Retry-After says when to ask again.";
const NO_AD_HOC: &str = "Keys of CL.THROTTLE belong to no rule, so they cannot be named here.";

/// The methods of `/v1/authorize`: a gateway passes on that of its request.
const METHODS: [&str; 8] = [
    "get", "put", "post", "delete", "options", "head", "patch", "trace",
];

/// Bodies of requests: of which schema, with which members. Those with an exclamation mark are required.
const REQUESTS: [(&str, &str, &str); 7] = [
    ("KeyRequest", "KeyRequest", "domain! rule entries reason"),
    ("KeyName", "KeyRequest", "domain! rule entries"),
    (
        "BanRequest",
        "KeyRequest",
        "domain! rule entries for! reason",
    ),
    ("Ending", "End", "domain! id!"),
    ("Release", "End", "domain! id! failed"),
    ("Settlement", "End", "domain! id! actual!"),
    ("CandidateRequest", "CandidateRequest", "text! note store"),
];

fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Quell",
            "version": "1",
            "summary": "A rate limiter whose limits and waits are exact.",
            "license": {"name": "MIT OR Apache-2.0"},
            "description": "docs/http.md of the repository says more: errors, numbers, and what is answered without \
                a body. A server with --admin answers /v1/rules, /v1/bans, /v1/keys, /v1/holds, /v1/top, \
                /v1/overrides, /v1/candidate and /metrics on a listener of their own, and all other paths on the HTTP listener; \
                health and this document are on both.",
        },
        "security": [{}, {"bearer": []}, {"header": []}],
        "paths": paths(),
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of this server's credentials (quell token new).",
                },
                "header": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Quell-Token",
                    "description": "The same; counts before Authorization, which a gateway may pass on from its \
                        visitor.",
                },
                "basic": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "A user of this server's credentials (quell token password).",
                },
            },
        },
    })
}

fn schemas() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let settings =
        settings.with(|settings| settings.definitions_path = "/components/schemas".into());
    let settings = settings.with_transform(RecursiveTransform(simplify));
    let mut generator = settings.into_generator();
    generator.subschema_for::<VerdictBody<'_>>();
    generator.subschema_for::<EndedBody<'_>>();
    generator.subschema_for::<EndBody<'_>>();
    generator.subschema_for::<KeyRequest<'_>>();
    generator.subschema_for::<ChangedBody>();
    generator.subschema_for::<BansBody>();
    generator.subschema_for::<HoldsBody>();
    generator.subschema_for::<TopBody>();
    generator.subschema_for::<RulesBody<'_>>();
    generator.subschema_for::<CandidateRequest>();
    generator.subschema_for::<CandidateBody>();
    generator.subschema_for::<StartedBody>();
    generator.subschema_for::<StoppedBody>();
    generator.subschema_for::<OverrideRecordBody>();
    generator.subschema_for::<OverridesBody>();
    generator.subschema_for::<OverriddenKeyBody>();
    generator.subschema_for::<DeletedOverridesBody>();
    generator.subschema_for::<BatchBody>();
    generator.subschema_for::<HealthBody>();
    generator.subschema_for::<Problem>();
    let definitions = generator.take_definitions(true).into_iter();
    let mut schemas: Map<String, Value> = definitions
        .map(|(name, schema)| (short(&name).to_owned(), schema))
        .collect();
    let requests = REQUESTS.map(|(name, whole, members)| (name, request(&schemas[whole], members)));
    schemas.remove("End");
    schemas.extend(requests.map(|(name, schema)| (name.to_owned(), schema)));
    let wait = json!({
        "type": "integer", "minimum": 0, "maximum": millis(MAX_WAIT), "default": 0,
        "description": "Longest wait for its turn that the caller accepts.",
    });
    let id = json!({
        "type": "string", "minLength": 1, "maxLength": MAX_ID, "pattern": "^[!-~]+$",
        "description": "The id of the reservation; without it, the server chooses one.",
    });
    let hold = json!({
        "type": "integer", "minimum": 1, "maximum": millis(MAX_HOLD), "default": millis(DEFAULT_HOLD),
        "description": "Time for which it can be settled.",
    });
    schemas.insert("OverrideRequest".to_owned(), override_request());
    schemas.insert("Peek".to_owned(), question(&json!({})));
    schemas.insert("Query".to_owned(), question(&json!({"max_wait_ms": wait})));
    let more = json!({"id": id, "hold_ms": hold});
    schemas.insert("Reservation".to_owned(), question(&more));
    schemas
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap()
}

/// The name of a type, or of a reference to it, without the word that all types of bodies end with.
fn short(name: &str) -> &str {
    name.strip_suffix("Body").unwrap_or(name)
}

/// Says in the fewest words what a type says, for generators of clients.
fn simplify(schema: &mut Schema) {
    let Some(members) = schema.as_object_mut() else {
        return;
    };
    if let Some(Value::String(text)) = members.get_mut("description") {
        let paragraphs = text.split("\n\n").map(|lines| lines.replace('\n', " "));
        *text = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
    if let Some(Value::String(name)) = members.get_mut("$ref") {
        *name = short(name).to_owned();
    }
    // The sizes of Rust's numbers: their bounds are there.
    let format = members.get("format").and_then(Value::as_str);
    if format.is_some_and(|format| format.contains("int")) {
        members.remove("format");
    }
    // The words of an enum, which are more with comments on them.
    let words = members.get("oneOf").and_then(Value::as_array);
    let words = words.and_then(|words| {
        words
            .iter()
            .map(|word| word.get("const").cloned())
            .collect()
    });
    if let Some(words) = words {
        members.remove("oneOf");
        members.insert("type".to_owned(), json!("string"));
        members.insert("enum".to_owned(), Value::Array(words));
    }
    let required = members.get("required").cloned().unwrap_or_default();
    let required = required.as_array().cloned().unwrap_or_default();
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        let properties = properties.iter_mut();
        properties
            .filter(|(name, _)| !required.contains(&json!(name)))
            .filter_map(|(_, property)| property.as_object_mut())
            .for_each(forbid_null);
    }
    // A type or null.
    if let Some(either) = members.remove("anyOf") {
        members.insert("oneOf".to_owned(), either);
    }
}

/// Forbids null where a member may be left out.
fn forbid_null(property: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = property.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            property.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(either)) = property.remove("anyOf") {
        let types = either.into_iter().filter(|schema| schema["type"] != "null");
        for schema in types {
            property.extend(schema.as_object().unwrap().clone());
        }
    }
}

/// A request with some of the members of a schema.
fn request(whole: &Value, members: &str) -> Value {
    let names = members.split(' ').map(|name| name.trim_end_matches('!'));
    let properties: Map<String, Value> = names
        .map(|name| (name.to_owned(), whole["properties"][name].clone()))
        .collect();
    let required = members.split(' ').filter_map(|name| name.strip_suffix('!'));
    json!({
        "type": "object",
        "properties": properties,
        "required": required.collect::<Vec<_>>(),
        "additionalProperties": false,
    })
}

/// An override that is written: numbers, and these.
fn override_request() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    json!({
        "type": "object",
        "description": "The fields of a limit as in an override of the rules file, or one of plan, unlimited and \
            refuse; and when and why they apply.",
        "properties": {
            "plan": text("The plan whose numbers apply."),
            "unlimited": {"const": true, "description": "There is no limit."},
            "refuse": {"const": true, "description": "Every call is refused."},
            "from": text("When they begin to apply: RFC 3339, or a duration from now such as 2h."),
            "until": text("When they end; the same. An override with an end and one without are two."),
            "change": {
                "type": "string", "enum": ["keep", "prorate", "restart"], "default": "keep",
                "description": "What becomes of what the key used: it is kept; the limit of this window is made of \
                    the old and the new one; it is forgotten.",
            },
            "prorated": reference("Prorated"),
            "reason": text("Why; at most 500 characters."),
        },
        "additionalProperties": true,
    })
}

/// A question of one descriptor or of several, with these members more.
fn question(more: &Value) -> Value {
    let entries = json!({
        "type": "object", "additionalProperties": {"type": "string"}, "maxProperties": MAX_ENTRIES,
    });
    let cost = json!({"type": "integer", "minimum": 1, "default": 1});
    let descriptor = json!({"entries": entries, "cost": cost});
    let descriptors = json!({"descriptors": {
        "type": "array", "minItems": 1, "maxItems": MAX_DESCRIPTORS,
        "items": {"type": "object", "properties": descriptor, "additionalProperties": false},
    }});
    let form = |own: &Value, required: &[&str]| {
        let mut properties = own.as_object().unwrap().clone();
        properties.extend(more.as_object().unwrap().clone());
        properties.insert("domain".to_owned(), json!({"type": "string"}));
        json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        })
    };
    json!({"oneOf": [
        form(&descriptor, &["domain"]),
        form(&descriptors, &["domain", "descriptors"]),
    ]})
}

/// A method at a path.
struct Operation(Value);

impl Operation {
    fn new(summary: &str, schema: &str, answer: &str) -> Self {
        let content = json!({"application/json": {"schema": reference(schema)}});
        Self(json!({
            "summary": summary,
            "responses": {"200": {"description": answer, "content": content}},
        }))
    }

    fn with(mut self, member: &str, value: Value) -> Self {
        self.0[member] = value;
        self
    }

    fn refused(mut self, status: &str, why: &str) -> Self {
        let content = json!({"application/problem+json": {"schema": reference("Problem")}});
        self.0["responses"][status] = json!({"description": why, "content": content});
        self
    }

    fn with_body(self, schema: &str) -> Self {
        let content = json!({"application/json": {"schema": reference(schema)}});
        self.with("requestBody", json!({"required": true, "content": content}))
            .refused("400", BAD_BODY)
            .refused("408", "The body did not arrive in time.")
            .refused("413", "The body is too long.")
            .refused("415", "The body is not application/json.")
    }

    /// Of everybody.
    fn public(self) -> Self {
        self.with("security", json!([]))
            .refused("403", FOREIGN_HOST)
    }

    /// Of callers with a token.
    fn guarded(self) -> Self {
        let not_permitted = "The Host is a name that this server is not asked by (--allow-host); or the token does \
            not have the role or the domain.";
        self.refused(
            "401",
            "This server has credentials, and no valid token came with the request.",
        )
        .refused("403", not_permitted)
    }

    /// Of people too, who log in.
    fn of_administration(self) -> Self {
        let overloaded =
            "Too many log in at this moment (urn:quell:problem:overloaded): try again in a second.";
        let security = json!([{}, {"bearer": []}, {"header": []}, {"basic": []}]);
        self.guarded()
            .with("security", security)
            .refused("404", OTHER_LISTENER)
            .refused("503", overloaded)
    }

    /// A change of keys.
    fn of_keys(summary: &str, body: &str, (schema, answer): (&str, &str)) -> Self {
        Self::new(summary, schema, answer)
            .of_administration()
            .with_body(body)
            .with("description", json!(NO_AD_HOC))
            .refused("404", NO_DOMAIN)
            .refused("503", STORE_FAILED)
    }
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn parameter(name: &str, description: &str, schema: Value) -> Value {
    json!({
        "name": name, "in": "query", "required": false, "description": description, "schema": schema,
    })
}

fn paths() -> Value {
    let mut paths = json!({});
    let operations = questions()
        .into_iter()
        .chain(administration())
        .chain(overrides())
        .chain(candidate())
        .chain(status());
    for (path, method, operation) in operations {
        paths[path][method] = operation.0;
    }
    for method in METHODS {
        paths["/v1/authorize"][method] = authorize();
    }
    paths
}

type Route = (&'static str, &'static str, Operation);

fn questions() -> [Route; 7] {
    let verdict = |summary, body| {
        Operation::new(summary, "Verdict", "The verdict, allowed or not.")
            .guarded()
            .with_body(body)
            .refused("404", NO_DOMAIN)
            .refused("503", UNDECLARED)
    };
    let end = |summary, body| {
        Operation::new(summary, "Ended", "Outcome of the end, now or before.")
            .guarded()
            .with_body(body)
            .refused("404", "No such reservation or permit.")
            .refused("503", STORE_FAILED)
    };
    let acquire =
        "Asks, and charges if all limits allow; or waits for its turn, up to max_wait_ms.";
    let peek = "Asks only: nothing is charged, and no refusal is counted.";
    let reserve = "Charges an estimate under an id, of which the true cost is settled later. Asked again with the \
        same id, it charges nothing.";
    let settle = "Pays what a reservation cost in truth: less is given back, more is owed. Said again, nothing \
        changes.";
    let renew = "Begins the lease of permits, and the hold of a reservation, anew.";
    let taken = "The id stands for another reservation, or for one that is over.";
    let full = "There are too many reservations, or the store gives no answer and no on_failure is declared, or it \
        is overloaded (urn:quell:problem:store-overloaded).";
    let mut reserve = verdict(reserve, "Reservation").refused("409", taken);
    reserve = reserve.refused("503", full);
    reserve.0["responses"]["200"]["description"] =
        json!("The verdict, with the id if it is allowed.");
    [
        ("/v1/acquire", "post", verdict(acquire, "Query")),
        ("/v1/peek", "post", verdict(peek, "Peek")),
        ("/v1/reserve", "post", reserve),
        (
            "/v1/settle",
            "post",
            end(settle, "Settlement").refused("404", "No such reservation."),
        ),
        (
            "/v1/cancel",
            "post",
            end("Gives back all that an id holds.", "Ending"),
        ),
        (
            "/v1/release",
            "post",
            end("Gives permits back; what was charged stays.", "Release"),
        ),
        ("/v1/renew", "post", end(renew, "Ending")),
    ]
}

fn authorize() -> Value {
    let allowed = "Allowed, with RateLimit and RateLimit-Policy; and with Quell-Degraded: ?1 if that is what \
        on_failure declares. Quell-Would-Refuse: ?1 says that a rule in shadow would refuse, on refusals as well.";
    let foreign = "A page of another site may have sent it: it has none of a gateway's headers; or the token does \
        not have the role or the domain.";
    let refused = "Refused, with Retry-After, RateLimit and RateLimit-Policy; another status if deny_status says \
        so, or else the `status` of the rule that refused.";
    let unsupported = "A rule that applies delays calls or hands out permits, which a gateway cannot obey \
        (urn:quell:problem:unsupported-rule). Nothing was charged.";
    let degraded = "Refused as on_failure declares, since the store does not answer, with Quell-Degraded: ?1; or \
        the store is overloaded (urn:quell:problem:store-overloaded), without.";
    let other = "Refused, with the status that deny_status or the rule says.";
    let status = json!({"type": "integer", "minimum": 400, "maximum": 599, "default": 429});
    let allow = json!({"type": "integer", "enum": [200, 204], "default": 204});
    let parameters = json!([
        parameter(
            "domain",
            "The domain; may be left out while there is only one.",
            json!({"type": "string"})
        ),
        parameter(
            "allow_status",
            "The status of a permission, for gateways that insist on 200.",
            allow
        ),
        parameter(
            "deny_status",
            "The status of a refusal, for gateways that insist on another than 429.",
            status
        ),
    ]);
    let summary = "Asks for a gateway: entries come from headers.";
    let mut operation = Operation(json!({"summary": summary, "responses": {}}))
        .with("parameters", parameters)
        .guarded()
        .refused("400", "Headers or parameters are wrong.")
        .refused("403", foreign)
        .refused("404", "No such domain.")
        .refused("429", refused)
        .refused("501", unsupported)
        .refused("503", degraded)
        .refused("4XX", other)
        .refused("5XX", other);
    let page = "The `body` of the rule that refused, with its `body_type`.";
    let page = json!({"schema": {"type": "string", "description": page}});
    let answers = operation.0["responses"].as_object_mut().unwrap();
    for answer in answers.values_mut() {
        answer["content"]["*/*"] = page.clone();
    }
    let chosen = "As 204, if allow_status says so.";
    answers.insert("200".to_owned(), json!({"description": chosen}));
    answers.insert("204".to_owned(), json!({"description": allowed}));
    operation.0
}

fn administration() -> [Route; 7] {
    let number = |most: usize, default: usize| {
        json!({
            "type": "integer", "minimum": 1, "maximum": most, "default": default,
        })
    };
    let text = || json!({"type": "string"});
    let of_bans = json!([
        parameter(
            "most",
            "Greatest number of bans.",
            number(MAX_BANS, admin::BANS)
        ),
        parameter("domain", "Only those of this domain.", text()),
        parameter("after", "The `next` of the page before.", text()),
    ]);
    let of_rule = "Only keys of this rule; cl.throttle for those of CL.THROTTLE.";
    let hash = json!({"type": "boolean", "default": false});
    let of_top = json!([
        parameter("domain", "Only keys of this domain.", text()),
        parameter("rule", of_rule, text()),
        parameter(
            "count",
            "Greatest number of keys.",
            number(top::MAX_KEYS, top::KEYS)
        ),
        parameter("hash", "Hashes in place of entries.", hash),
    ]);
    let bans = "A page of the bans that stand, the longest first.";
    let bans = Operation::new(bans, "Bans", "The bans.")
        .of_administration()
        .with("parameters", of_bans)
        .refused("400", BAD_PARAMETER)
        .refused("503", STORE_FAILED);
    let top = "The keys that were refused most often in the last 5 to 10 minutes.";
    let top = Operation::new(top, "Top", "The keys, those refused most often first.")
        .of_administration()
        .with("parameters", of_top)
        .refused("400", BAD_PARAMETER);
    let done = ("Changed", "Done.");
    let ban = Operation::of_keys("Bans a key.", "BanRequest", done);
    let lift = Operation::of_keys("Lifts a ban; what was used stays.", "KeyRequest", done);
    let forgive = "Forgives a key: what it used, its refusals and its ban.";
    let forgive = Operation::of_keys(forgive, "KeyRequest", done);
    let holds = "What is held on a key, and what waits for its turn there.";
    let held = ("Holds", "The keys, with what is held on each.");
    let of_holds = format!(
        "In order of time, at most 100 for a key. It changes nothing. The ids are shown to the role admin alone: who \
         knows one can end the hold. {NO_AD_HOC}"
    );
    let holds = Operation::of_keys(holds, "KeyName", held).with("description", json!(of_holds));
    let rules = Operation::new("The rules in force.", "Rules", "All domains.").of_administration();
    [
        ("/v1/rules", "get", rules),
        ("/v1/bans", "get", bans),
        ("/v1/bans", "post", ban),
        ("/v1/bans", "delete", lift),
        ("/v1/keys", "delete", forgive),
        ("/v1/holds", "post", holds),
        ("/v1/top", "get", top),
    ]
}

const OVERRIDE_STORE_FAILED: &str = "The store of overrides gives no answer, and nothing was changed: ask again when Retry-After says.";

fn overrides() -> [Route; 6] {
    const KEY: &str = "/v1/overrides/{domain}/{rule}";
    let text = || json!({"type": "string"});
    let in_path = |name: &str, about: &str| json!({"name": name, "in": "path", "required": true, "description": about, "schema": {"type": "string"}});
    let domain = || in_path("domain", "The domain.");
    let rule = || {
        in_path(
            "rule",
            "The rule, or * for every rule whose `per` has exactly these entries.",
        )
    };
    let entries = json!({
        "name": "entries", "in": "query", "style": "form", "explode": true,
        "description": "The entries of the rule's `per`: ENTRY=VALUE for each. `wait` and `which` are no entries.",
        "schema": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 8},
    });
    let wait = || {
        let about = "For how long to wait until the change is in force, such as 1s; at most 10s.";
        parameter("wait", about, text())
    };
    let which = json!({"type": "string", "enum": ["boost", "standing"]});
    let which = parameter(
        "which",
        "Only the override with an end, or that without.",
        which,
    );
    let field = |name: &str, about: &str| json!({"name": name, "in": "header", "required": false, "description": about, "schema": {"type": "string"}});
    let seen = "The revision that the caller saw, in quotes; or * for any.";
    let conditions = || {
        [
            field("If-Match", seen),
            field("If-None-Match", "*: there is none."),
        ]
    };
    let unconfirmed = "The store did not say whether it made the change.";
    let writes = |operation: Operation| {
        operation
            .refused("400", BAD_BODY)
            .refused(
                "412",
                "It has another revision than the caller saw, which `revision` says.",
            )
            .refused(
                "501",
                "This server is a node of a fleet, whose nodes do not share overrides yet.",
            )
            .refused("503", OVERRIDE_STORE_FAILED)
            .refused("504", unconfirmed)
    };
    let show = "The overrides of a key, and what decides it.";
    let show = Operation::new(show, "OverriddenKey", "The key.")
        .of_administration()
        .with("parameters", json!([domain(), rule(), entries]))
        .refused("400", BAD_PARAMETER)
        .refused("404", NO_DOMAIN)
        .refused("503", OVERRIDE_STORE_FAILED);
    let put = "Writes an override of a key, in place of the one with an end, or the one without.";
    let [seen, none] = conditions();
    let put = Operation::new(put, "OverrideRecord", "It is written, in place of one.")
        .of_administration()
        .with_body("OverrideRequest")
        .with(
            "parameters",
            json!([domain(), rule(), entries, wait(), seen, none]),
        )
        .refused("404", NO_DOMAIN);
    let mut put = writes(put);
    put.0["responses"]["201"] = put.0["responses"]["200"].clone();
    put.0["responses"]["201"]["description"] = json!("It is written, and there was none.");
    let [seen, none] = conditions();
    let delete = "Deletes the overrides of a key.";
    let delete = Operation::new(delete, "DeletedOverrides", "They are deleted.")
        .of_administration()
        .with(
            "parameters",
            json!([domain(), rule(), entries, wait(), which, seen, none]),
        )
        .refused("404", NO_DOMAIN);
    let number = json!({
        "type": "integer", "minimum": 1, "maximum": override_routes::MAX_PAGE, "default": override_routes::PAGE,
    });
    let of_list = json!([
        domain(),
        parameter("rule", "Only those of this rule, or of *.", text()),
        parameter("plan", "Only those that say this plan.", text()),
        parameter(
            "prefix",
            "Only those whose first entry has a value that begins so.",
            text()
        ),
        parameter("cursor", "The `next` of the page before.", text()),
        parameter("most", "Greatest number of overrides.", number),
    ]);
    let list = Operation::new(
        "A page of the overrides of a domain.",
        "Overrides",
        "The page.",
    )
    .of_administration()
    .with("parameters", of_list)
    .refused("400", BAD_PARAMETER)
    .refused("404", NO_DOMAIN)
    .refused("503", OVERRIDE_STORE_FAILED);
    let mut of_batch = parameter("domain", "The domain of all lines.", text());
    of_batch["required"] = json!(true);
    let batch = "Writes or deletes many overrides, all or none.";
    let batch = Operation::new(batch, "Batch", "All are changed.")
        .of_administration()
        .with("parameters", json!([of_batch, wait()]))
        .with_body("OverrideRequest")
        .refused("413", "The body is longer than 32 MiB.")
        .refused("415", "The body is not application/x-ndjson.")
        .refused(
            "422",
            "Lines are wrong; `errors` says which. Nothing was changed.",
        );
    let mut batch = writes(batch);
    let lines = "A JSON object a line: `rule`, `entries`, the members of an override, and `revision` if it has to have \
        that; or `delete: true` in place of the numbers, and `which` of the two. At most 10,000.";
    batch.0["requestBody"] = json!({
        "required": true, "description": lines, "content": {"application/x-ndjson": {"schema": text()}},
    });
    let since =
        "After which position: the `id` of an event. Without it, the first event is `list`.";
    let changes = "A stream of changes: events `put` and `delete` with the override in `data`, and `list` when the \
        client has to list all.";
    let mut changes = Operation::new(changes, "", "Server-sent events, until the server stops.")
        .of_administration()
        .with("parameters", json!([parameter("since", since, text())]))
        .refused("400", BAD_PARAMETER);
    let events = json!({"text/event-stream": {"schema": {"type": "string"}}});
    changes.0["responses"]["200"]["content"] = events;
    [
        (KEY, "get", show),
        (KEY, "put", put),
        (KEY, "delete", writes(delete)),
        ("/v1/overrides/{domain}", "get", list),
        ("/v1/overrides/batch", "post", batch),
        ("/v1/overrides/changes", "get", changes),
    ]
}

fn candidate() -> [Route; 3] {
    let show = "Rules that run in shadow beside those in force, and what they would refuse.";
    let show = Operation::new(
        show,
        "Candidate",
        "State of the candidate, or null if none runs.",
    );
    let start = "Runs rules in shadow, in place of the candidate before.";
    let no_store = "No such store of rules; or administration has a listener of its own (--admin), and this is not \
        it.";
    let start = Operation::new(start, "Started", "It runs.")
        .of_administration()
        .with_body("CandidateRequest")
        .refused("404", no_store)
        .refused("409", "It cannot run here; the detail says why.")
        .refused("503", STORE_FAILED);
    let stop = Operation::new("Ends the candidate.", "Stopped", "Done.");
    [
        ("/v1/candidate", "get", show.of_administration()),
        ("/v1/candidate", "post", start),
        ("/v1/candidate", "delete", stop.of_administration()),
    ]
}

/// Health, numbers and this document.
fn status() -> [Route; 4] {
    let alive = "Whether the process is alive, and how it is.";
    let ready = "Whether questions should be sent here.";
    let mut ready = Operation::new(ready, "Health", "They should.").public();
    let answers = &mut ready.0["responses"];
    answers["503"] = answers["200"].clone();
    let down = "It is on its way down, or a store of rules has none yet (--allow-empty-rules).";
    answers["503"]["description"] = json!(down);
    let metrics = "Numbers for Prometheus.";
    let mut metrics = Operation::new(metrics, "", "Text format 0.0.4.").of_administration();
    let text = json!({"text/plain": {"schema": {"type": "string"}}});
    metrics.0["responses"]["200"]["content"] = text;
    let mut own = Operation::new("This document.", "", "OpenAPI 3.1.").public();
    own.0["responses"]["200"]["content"] = json!({"application/json": {}});
    [
        (
            "/healthz",
            "get",
            Operation::new(alive, "Health", "It is.").public(),
        ),
        ("/readyz", "get", ready),
        ("/metrics", "get", metrics),
        ("/openapi.json", "get", own),
    ]
}

#[test]
fn the_document_is_what_the_types_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/openapi.json");
    let document = document();
    if std::env::var_os("QUELL_UPDATE_DOCS").is_some() {
        let mut text = Vec::new();
        let lines = PrettyFormatter::with_indent(b" ");
        let mut writer = Serializer::with_formatter(&mut text, lines);
        document.serialize(&mut writer).unwrap();
        text.push(b'\n');
        std::fs::write(&file, text).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let kept: Value = serde_json::from_str(&kept).unwrap_or_default();
    assert!(
        kept == document,
        "openapi.json is out of date: run `QUELL_UPDATE_DOCS=1 cargo test -p quell-server --lib openapi`"
    );
}
