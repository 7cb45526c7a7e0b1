//! `quell fleet preview`: every node's share before and after a change that is not made.

use anyhow::{Result, bail};
use clap::Args;
use quell_coordinator::admin::{LimitBody, PreviewBody, WeightBody};
use quell_coordinator::status::PreviewStatus;
use quell_protocol::printable;

use super::admin::{Coordinator, node};
use crate::entry;
use crate::exit::{Exit, Usage};
use crate::output::{self, Paint};
use crate::table::TextTable;
use quell_coordinator::report::rate;

/// Show every node's share before and after a change, without making it
///
/// The change is another weight of a node, other numbers of a limit or, without both, the rules that wait
/// for `quell fleet rollout`, which are listed as well. The shares after the change assume that the demand
/// on each node stays as it is.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  quell fleet preview --node node-3 --weight 2
  quell fleet preview --limit api --rate 500
  quell fleet preview")]
pub(super) struct Preview {
    /// The node with another weight
    #[arg(
        long,
        value_name = "NODE",
        value_parser = node,
        requires = "weight",
        conflicts_with = "limit"
    )]
    node: Option<u32>,

    /// Its weight
    #[arg(long, value_name = "WEIGHT", requires = "node", value_parser = entry::whole::<u32>)]
    weight: Option<u32>,

    /// The limit with other numbers
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,

    /// Its rate, in units per second
    #[arg(long, value_name = "N", requires = "limit", value_parser = entry::whole::<u64>)]
    rate: Option<u64>,

    /// Its burst, in units
    #[arg(long, value_name = "N", requires = "limit", value_parser = entry::whole::<u64>)]
    burst: Option<u64>,

    #[command(flatten)]
    to: Coordinator,

    /// Print the shares as JSON, as the coordinator gave them
    #[arg(long)]
    json: bool,
}

impl Preview {
    pub(super) fn run(&self) -> Result<Exit> {
        if self.limit.is_some() && self.rate.is_none() && self.burst.is_none() {
            bail!(Usage(
                "--limit does not say what would change: write --rate N, --burst N or both"
                    .to_owned()
            ));
        }
        let weight = self.node.zip(self.weight);
        let body = PreviewBody {
            weight: weight.map(|(member, weight)| WeightBody { member, weight }),
            limit: self.limit.clone().map(|name| LimitBody {
                name,
                rate_per_s: self.rate,
                burst: self.burst,
            }),
        };
        let answer = self.to.leader()?.post("preview", &body)?;
        if self.json {
            output::json_text(&answer.text)?;
            return Ok(Exit::Fine);
        }
        let preview: PreviewStatus = answer.json()?;
        let mut table = TextTable::new(["NODE", "LIMIT", "SHARE/S", "AFTER", "STATIC/S", "AFTER"]);
        for share in preview.shares {
            table.push([
                share.member.to_string(),
                share.name,
                rate(share.before_per_s),
                rate(share.after_per_s),
                rate(share.static_before_per_s),
                rate(share.static_after_per_s),
            ]);
        }
        for line in table.lines(Paint::stdout()) {
            output::line(line)?;
        }
        if !preview.waits.is_empty() {
            output::line("waits for `quell fleet rollout`:")?;
            for rule in &preview.waits {
                output::line(format_args!("  {}", printable(rule)))?;
            }
        }
        Ok(Exit::Fine)
    }
}
