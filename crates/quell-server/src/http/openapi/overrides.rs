//! The routes of `/v1/overrides`.

use serde_json::{Value, json};

use super::{BAD_BODY, BAD_PARAMETER, NO_DOMAIN, Operation, Route, parameter, reference};
use crate::http::override_routes::{MAX_PAGE, PAGE};

const STORE_FAILED: &str = "The store of overrides gives no answer, and nothing was changed: ask again when Retry-After says.";
const UNCONFIRMED: &str = "The store did not say whether it made the change.";
const FULL: &str =
    "There would be more overrides than --max-overrides allows, and nothing was changed.";
const CHANGED_MEANWHILE: &str =
    "It has another revision than the caller saw, which `revision` says.";

/// An override that is written: numbers, and these.
pub(super) fn request() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    json!({
        "type": "object",
        "description": "The fields of a limit as in an override of the rules file, or one of plan, unlimited and \
            refuse; and when and why they apply. Beside plan there may be anchor and time_zone.",
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

fn text() -> Value {
    json!({"type": "string"})
}

fn in_path(name: &str, about: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "description": about, "schema": text()})
}

fn field(name: &str, about: &str) -> Value {
    json!({"name": name, "in": "header", "required": false, "description": about, "schema": text()})
}

fn domain() -> Value {
    in_path("domain", "The domain.")
}

fn wait() -> Value {
    let about = "For how long to wait until all servers have the change, such as 1s; at most 10s. Without it, this \
        server is waited for, for a second.";
    parameter("wait", about, text())
}

fn ended() -> Value {
    let words = json!({"type": "string", "enum": ["refuse", "skip"], "default": "refuse"});
    let about = "What becomes of lines whose `until` is over: the batch is refused; or they are passed over, and \
                 `skipped` says how many.";
    parameter("ended", about, words)
}

fn check() -> Value {
    let about = "Whether lines are only checked, as for a write. Nothing is written; \
                 `changed` is the number of changes that the lines say, and `in_force` is false.";
    let schema = json!({"type": "boolean", "default": false});
    parameter("check", about, schema)
}

/// The parameters of a key, and these.
fn key_and(more: &[Value]) -> Value {
    let rule = "The rule, or * for every rule whose `per` has exactly these entries.";
    let entries = json!({
        "name": "entries", "in": "query", "style": "form", "explode": true,
        "description": "The entries of the rule's `per`: ENTRY=VALUE for each. `wait` and `which` are no entries.",
        "schema": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 8},
    });
    let mut all = vec![domain(), in_path("rule", rule), entries];
    all.extend_from_slice(more);
    Value::Array(all)
}

/// The fields of a change that depends on what the caller saw.
fn conditions() -> [Value; 2] {
    let seen = "The revision that the caller saw, in quotes; or * for any.";
    [
        field("If-Match", seen),
        field("If-None-Match", "*: there is none."),
    ]
}

fn write(operation: Operation) -> Operation {
    operation
        .refused("400", BAD_BODY)
        .refused("412", CHANGED_MEANWHILE)
        .refused("503", STORE_FAILED)
        .refused("504", UNCONFIRMED)
        .refused("507", FULL)
}

/// The routes of one key.
pub(super) fn of_key() -> [Route; 3] {
    const KEY: &str = "/v1/overrides/{domain}/{rule}";
    let show = "The overrides of a key, and what decides it.";
    let show = Operation::new(show, "OverriddenKey", "The key.")
        .of_administration()
        .with("parameters", key_and(&[]))
        .refused("400", BAD_PARAMETER)
        .refused("404", NO_DOMAIN)
        .refused("503", STORE_FAILED);
    let put = "Writes an override of a key, in place of the one with an end, or the one without.";
    let [seen, none] = conditions();
    let put = Operation::new(put, "OverrideRecord", "It is written, in place of one.")
        .of_administration()
        .with_body("OverrideRequest")
        .with("parameters", key_and(&[wait(), seen, none]))
        .refused("404", NO_DOMAIN);
    let mut put = write(put);
    put.0["responses"]["201"] = put.0["responses"]["200"].clone();
    put.0["responses"]["201"]["description"] = json!("It is written, and there was none.");
    let which = json!({"type": "string", "enum": ["boost", "standing"]});
    let which = parameter(
        "which",
        "Only the override with an end, or that without.",
        which,
    );
    let [seen, none] = conditions();
    let delete = "Deletes the overrides of a key.";
    let delete = Operation::new(delete, "DeletedOverrides", "They are deleted.")
        .of_administration()
        .with("parameters", key_and(&[wait(), which, seen, none]))
        .refused("404", NO_DOMAIN);
    [
        (KEY, "get", show),
        (KEY, "put", put),
        (KEY, "delete", write(delete)),
    ]
}

/// The routes of many keys.
pub(super) fn of_many() -> [Route; 3] {
    let most = json!({"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": PAGE});
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
        parameter("most", "Greatest number of overrides.", most),
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
    .refused("503", STORE_FAILED);
    let since =
        "After which position: the `id` of an event. Without it, the first event is `list`.";
    let changes = "A stream of changes: events `put` and `delete` with the override in `data`, and `list` when the \
        client has to list all.";
    let mut changes = Operation::new(changes, "", "Server-sent events, until the server stops.")
        .of_administration()
        .with("parameters", json!([parameter("since", since, text())]))
        .refused("400", BAD_PARAMETER);
    let events = json!({"text/event-stream": {"schema": text()}});
    changes.0["responses"]["200"]["content"] = events;
    [
        ("/v1/overrides/{domain}", "get", list),
        ("/v1/overrides/batch", "post", batch()),
        ("/v1/overrides/changes", "get", changes),
    ]
}

fn batch() -> Operation {
    let mut domain = parameter("domain", "The domain of all lines.", text());
    domain["required"] = json!(true);
    let batch = "Writes or deletes many overrides, all or none.";
    let batch = Operation::new(batch, "Batch", "All are changed.")
        .of_administration()
        .with("parameters", json!([domain, wait(), ended(), check()]))
        .with_body("OverrideRequest")
        .refused("413", "The body is longer than 32 MiB.")
        .refused("415", "The body is not application/x-ndjson.")
        .refused(
            "422",
            "Lines are wrong; `errors` says which. Nothing was changed.",
        );
    let mut batch = write(batch);
    let lines = "A JSON object a line: `rule`, `entries`, the members of an override, and `revision` if it has to have \
        that; or `delete: true` in place of the numbers, and `which` of the two. At most 10,000.";
    batch.0["requestBody"] = json!({
        "required": true, "description": lines, "content": {"application/x-ndjson": {"schema": text()}},
    });
    batch
}
