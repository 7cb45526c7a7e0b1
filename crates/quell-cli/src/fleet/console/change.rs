//! Change: what a form asks the leader for.

use quell_coordinator::admin::{Change, DeregisterBody, DrainBody, FenceBody, WeightBody};

/// The fields of a form of the page of a node.
#[derive(Debug, Default)]
pub(super) struct Form {
    pub(super) action: String,
    pub(super) weight: String,
    pub(super) incarnation: String,
    /// Whether the person says that the process is dead.
    pub(super) is_dead: bool,
}

impl Form {
    pub(super) fn of(fields: Vec<(String, String)>) -> Self {
        let mut form = Self::default();
        for (name, value) in fields {
            match &*name {
                "action" => form.action = value,
                "weight" => value.trim().clone_into(&mut form.weight),
                "incarnation" => value.trim().clone_into(&mut form.incarnation),
                "dead" => form.is_dead = true,
                _ => {}
            }
        }
        form
    }

    /// The change of a node, with what was done.
    ///
    /// # Errors
    /// What is wrong with the form.
    pub(super) fn change(&self, member: u32) -> Result<(Change, String), String> {
        if matches!(&*self.action, "fence" | "deregister") && !self.is_dead {
            return Err(
                "say that its process is dead: one that still runs would exceed the limits"
                    .to_owned(),
            );
        }
        Ok(match &*self.action {
            "weight" => {
                let weight = weight(&self.weight)?;
                (
                    Change::Weight(WeightBody { member, weight }),
                    format!("Node {member} has weight {weight}."),
                )
            }
            "drain" | "undo" => {
                let drain = self.action == "drain";
                let done = match drain {
                    true => "is drained: the others get its part",
                    false => "gets its part again",
                };
                (
                    Change::Drain(DrainBody { member, drain }),
                    format!("Node {member} {done}."),
                )
            }
            "fence" => {
                let incarnation = self.incarnation.parse()?;
                (
                    Change::Fence(FenceBody {
                        member,
                        incarnation,
                    }),
                    format!(
                        "Start {incarnation} of node {member} is fenced: the others get its part."
                    ),
                )
            }
            "deregister" => (
                Change::Deregister(DeregisterBody { member }),
                format!("Node {member} has no seat any more."),
            ),
            _ => return Err("write weight, drain, undo, fence or deregister".to_owned()),
        })
    }
}

/// Reads a weight.
///
/// # Errors
/// What to write.
pub(super) fn weight(text: &str) -> Result<u32, String> {
    let weight = text.trim().parse().ok().filter(|weight| *weight > 0);
    weight.ok_or_else(|| format!("`{text}` is no weight: write a whole number from 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(fields: &[(&str, &str)]) -> Form {
        let fields = fields.iter();
        Form::of(
            fields
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn a_form_is_the_command_that_does_the_same() {
        for (fields, command) in [
            (
                &[("action", "weight"), ("weight", " 2 ")][..],
                "quell fleet weight 3 2",
            ),
            (&[("action", "drain")], "quell fleet drain 3"),
            (&[("action", "undo")], "quell fleet drain 3 --undo"),
            (
                &[("action", "fence"), ("incarnation", "7"), ("dead", "on")],
                "quell fleet fence 3 --incarnation 7",
            ),
            (
                &[("action", "deregister"), ("dead", "on")],
                "quell fleet deregister 3",
            ),
        ] {
            let (change, _) = form(fields).change(3).unwrap();
            assert_eq!(change.command(), command);
        }
        for wrong in [
            &[("action", "weight"), ("weight", "0")][..],
            &[("action", "fence"), ("incarnation", "7")],
            &[("action", "fence"), ("incarnation", "x"), ("dead", "on")],
            &[("action", "deregister")],
            &[],
        ] {
            assert!(form(wrong).change(3).is_err(), "{wrong:?}");
        }
    }
}
