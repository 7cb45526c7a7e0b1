//! Writes a verdict as JSON directly into the reply. The bytes are those of `serde`, with a tenth of the
//! instructions, because names and punctuation are written together and each string is scanned once.

use super::verdict::{DecisionBody, VerdictBody};

impl VerdictBody<'_> {
    /// Appends the verdict as one JSON object, with exactly the bytes that its `Serialize` writes.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        push_boolean(out, r#"{"allowed":"#, self.allowed);
        push(out, r#","binding":"#);
        match &self.binding {
            Some(rule) => push_text(out, rule),
            None => push(out, "null"),
        }
        push_number(out, r#","remaining":"#, self.remaining);
        push_number(out, r#","retry_after_ms":"#, self.retry_after_ms);
        push_number(out, r#","reset_after_ms":"#, self.reset_after_ms);
        push_number(out, r#","delay_ms":"#, Some(self.delay_ms));
        push_boolean(out, r#","permanent":"#, self.permanent);
        push_boolean(out, r#","banned":"#, self.banned);
        push_boolean(out, r#","degraded":"#, self.degraded);
        push_boolean(out, r#","unmatched":"#, self.unmatched);
        if let Some(id) = &self.id {
            push(out, r#","id":"#);
            push_text(out, id);
        }
        if self.waited_ms.is_some() {
            push_number(out, r#","waited_ms":"#, self.waited_ms);
        }
        push(out, r#","decisions":["#);
        for (index, decision) in self.decisions.iter().enumerate() {
            push(out, if index == 0 { "{" } else { ",{" });
            decision.write_members(out);
        }
        push(out, "]");
        push_would_refuse(out, self.would_refuse);
    }
}

impl DecisionBody<'_> {
    fn write_members(&self, out: &mut Vec<u8>) {
        push(out, r#""rule":"#);
        push_text(out, &self.rule);
        push(out, r#","outcome":""#);
        push(out, self.outcome.as_str());
        push_number(out, r#"","limit":"#, Some(self.limit));
        push_number(out, r#","remaining":"#, Some(self.remaining));
        push_number(out, r#","retry_after_ms":"#, self.retry_after_ms);
        push_number(out, r#","reset_after_ms":"#, Some(self.reset_after_ms));
        push_number(out, r#","delay_ms":"#, Some(self.delay_ms));
        push_boolean(out, r#","permanent":"#, self.permanent);
        push_boolean(out, r#","banned":"#, self.banned);
        push_boolean(out, r#","shadow":"#, self.shadow);
        if let Some(rung) = &self.rung {
            push(out, r#","rung":"#);
            push_text(out, rung);
        }
        if self.bound.is_some() {
            push_number(out, r#","bound":"#, self.bound);
        }
        push_would_refuse(out, self.would_refuse);
    }
}

/// The last member, which is left out if it is false, and the end of the object.
#[inline]
fn push_would_refuse(out: &mut Vec<u8>, would_refuse: bool) {
    push(
        out,
        if would_refuse {
            r#","would_refuse":true}"#
        } else {
            "}"
        },
    );
}

#[inline]
fn push(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

#[inline]
fn push_boolean(out: &mut Vec<u8>, name: &str, value: bool) {
    push(out, name);
    push(out, if value { "true" } else { "false" });
}

#[inline]
fn push_number(out: &mut Vec<u8>, name: &str, value: Option<u64>) {
    push(out, name);
    match value {
        None => push(out, "null"),
        Some(value) => push(out, itoa::Buffer::new().format(value)),
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    let is_plain = |byte: &u8| !matches!(byte, 0..=0x1f | b'"' | b'\\');
    if text.as_bytes().iter().all(is_plain) {
        out.push(b'"');
        push(out, text);
        out.push(b'"');
    } else {
        // Writing text to memory cannot fail.
        let _ = serde_json::to_writer(out, text);
    }
}
