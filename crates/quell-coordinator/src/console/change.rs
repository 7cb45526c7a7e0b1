//! Change: what a form asks the leader for.

use crate::admin::{Change, DeregisterBody, DrainBody, FenceBody, WeightBody};
use quell_host::console::page::Fields;

/// The change of a node that a form asks for, with what is then done.
///
/// # Errors
/// Names the fault in the form.
pub(super) fn change(form: &Fields, member: u32) -> Result<(Change, String), String> {
    let action = form.get("action");
    if matches!(action, "fence" | "deregister") && form.get("dead").is_empty() {
        let reason = "say that its process is dead: one that still runs would exceed the limits";
        return Err(reason.to_owned());
    }
    Ok(match action {
        "weight" => {
            let weight = weight(form.get("weight"))?;
            let change = Change::Weight(WeightBody { member, weight });
            (change, format!("Node {member} has weight {weight}."))
        }
        "drain" | "undo" => {
            let drain = action == "drain";
            let done = match drain {
                true => "is drained: the others get its part",
                false => "gets its part again",
            };
            let change = Change::Drain(DrainBody { member, drain });
            (change, format!("Node {member} {done}."))
        }
        "fence" => {
            let incarnation = form.word("incarnation").parse()?;
            let body = FenceBody {
                member,
                incarnation,
            };
            let done =
                format!("Start {incarnation} of node {member} is fenced: the others get its part.");
            (Change::Fence(body), done)
        }
        "deregister" => {
            let change = Change::Deregister(DeregisterBody { member });
            (change, format!("Node {member} has no seat any more."))
        }
        _ => return Err("write weight, drain, undo, fence or deregister".to_owned()),
    })
}

/// Reads a weight.
///
/// # Errors
/// A text that says what to write instead.
pub(super) fn weight(text: &str) -> Result<u32, String> {
    let weight = text.trim().parse().ok().filter(|weight| *weight > 0);
    weight.ok_or_else(|| format!("`{text}` is not a weight: write a whole number from 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_the_command_that_does_the_same() {
        for (fields, command) in [
            ("action=weight&weight=+2+", "weight 3 2"),
            ("action=drain", "drain 3"),
            ("action=undo", "drain 3 --undo"),
            (
                "action=fence&incarnation=7&dead=on",
                "fence 3 --incarnation 7",
            ),
            ("action=deregister&dead=on", "deregister 3"),
        ] {
            let (change, _) = change(&Fields::parse(fields.as_bytes()), 3).unwrap();
            assert_eq!(change.command(), format!("quell fleet {command}"));
        }
        for wrong in [
            "action=weight&weight=0",
            "action=fence&incarnation=7",
            "action=fence&incarnation=x&dead=on",
            "action=deregister",
            "",
        ] {
            let fields = Fields::parse(wrong.as_bytes());
            assert!(change(&fields, 3).is_err(), "{wrong}");
        }
    }
}
