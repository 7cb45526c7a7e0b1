//! `quell rules set`: sets fields of one rule in a store, and changes nothing else.

use anyhow::{Result, bail};
use clap::Args;
use quell_host::rule_push::ProposedText;
use quell_rules::{Assignment, EditError, set_fields};

use super::publish::PublishArgs;
use crate::exit::{Exit, Usage};

/// Set fields of one rule in a store
///
/// A value in braces, brackets or quotes is YAML; any other value is taken literally. overrides[0].FIELD
/// is a field of the rule's first override, and plans.PLAN.RULE.FIELD one of what a plan says for the rule. All other
/// rules, comments and lines stay as they are.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell rules set --store redis://localhost:6379/0 api-per-tenant rate=200/s burst=400
  quell rules set --store redis://localhost:6379/0 api-per-tenant 'overrides[0].rate=2000/s'
  quell rules set --store redis://localhost:6379/0 api-per-tenant plans.gold.api-per-tenant.rate=200/s
  quell rules set --store redis://localhost:6379/0 login-per-ip -d shop 'ban={after: 3, within: 10m, for: 1h}'")]
pub(super) struct Set {
    /// The rule
    #[arg(value_name = "NAME")]
    rule: String,

    /// The new value of a field, such as rate=200/s
    #[arg(required = true, value_name = "FIELD=VALUE")]
    fields: Vec<Assignment>,

    /// The domain of the rule; may be left out if only one domain has a rule of that name
    #[arg(long, short, value_name = "DOMAIN")]
    domain: Option<String>,

    #[command(flatten)]
    publish: PublishArgs,
}

impl Set {
    /// Changes the newest version, and pushes the result.
    ///
    /// # Errors
    /// [`Usage`] if there is no such rule or several; else if the store cannot be read or written.
    pub(super) fn run(&self) -> Result<Exit> {
        let change = self.publish.begin()?;
        if let Some(reason) = change.push.unmet(None) {
            return change.refuse(reason);
        }
        let Some(version) = change.push.newest() else {
            bail!(
                "{} has no rules to change: `quell rules push FILE` brings some",
                change.push.versions().url()
            );
        };
        let name = format!("version {}", version.number().saturating_add(1));
        let domain = self.domain.as_deref();
        match set_fields(&name, &version.text, domain, &self.rule, &self.fields) {
            Ok(edited) => change.publish(ProposedText {
                text: &edited.text,
                loaded: edited.after,
                remark: String::new(),
            }),
            Err(EditError::After(problems)) => self.publish.print_mistakes(problems),
            Err(
                error @ (EditError::Before(_) | EditError::NotHere { .. } | EditError::Others(_)),
            ) => change.refuse(error.to_string()),
            Err(error) => bail!(Usage(error.to_string())),
        }
    }
}
