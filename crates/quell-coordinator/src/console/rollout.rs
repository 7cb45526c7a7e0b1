//! Rollout: changed rules that wait for an operator, put into force step by step, or taken back.

use std::sync::Arc;

use crate::admin::{Change, PreviewBody, RolloutBody};
use crate::status::{FleetStatus, PreviewStatus, SharePreview};
use askama::Template;
use axum::extract::{Request, State};
use quell_host::console::page::{Done, Fields, PageResult, Viewer};

use super::Console;
use super::pages::most_moved;
use crate::report::{Kind, rate, rollout_notes};
use crate::text_values::{percent, seconds};
use quell_host::fleet_member::read_number as node;

pub(super) const PATH: &str = "/console/rollout";

#[derive(Template)]
#[template(path = "fleet/rollout.html")]
struct RolloutPage<'a> {
    viewer: &'a Viewer,
    /// Form as filled in, if it was refused.
    asked: Fields,
    status: &'a FleetStatus,
    /// Every node's share now, and with the rules that wait.
    shares: Vec<SharePreview>,
    total: usize,
    /// Waiting rules: a sentence for each.
    waits: Vec<String>,
    /// Notes on the rollout that was begun, or on the last one.
    notes: Vec<(Kind, String)>,
}

impl RolloutPage<'_> {
    fn has_band(&self) -> bool {
        { self.status.rollout.as_ref() }.is_some_and(|rollout| rollout.band.is_some())
    }
}

pub(super) async fn page(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.reader(&request)?;
    shown(&console, &viewer, Fields::default(), Ok(None)).await
}

/// Does a step.
pub(super) async fn act(State(console): State<Arc<Console>>, request: Request) -> PageResult {
    let viewer = console.shell.editor(&request)?;
    let form = console.shell.form(request).await?;
    let asked = step(&form).map(|(body, done)| (Change::Rollout(body), done));
    let done = console.make(&viewer, &form, asked).await;
    let asked = Some(form).filter(|_| done.is_err()).unwrap_or_default();
    shown(&console, &viewer, asked, done).await
}

/// The step that a form asks for, and what is then done.
fn step(fields: &Fields) -> Result<(RolloutBody, String), String> {
    let field = |name| fields.word(name);
    let has_band = ["max_refused", "max_degraded", "window"].map(field) != [""; 3];
    let mut body = RolloutBody::default();
    let done = match field("action") {
        "node" => {
            let member = node(field("node"))?;
            body.member = Some(member);
            format!("Node {member} follows the changed rules.")
        }
        "percent" => {
            let part = field("percent").parse().ok();
            let part = part.filter(|part| (1..=100_u8).contains(part));
            let part = part.ok_or("write how many nodes of a hundred: 1 to 100")?;
            body.percent = Some(part);
            format!("{part} % of the nodes follow the changed rules.")
        }
        action @ ("all" | "judged") if has_band || action == "judged" => {
            body.percent = Some(100);
            "All nodes follow the changed rules, and are judged until the rollout is ended."
                .to_owned()
        }
        "all" => {
            body.all = true;
            "All nodes follow the changed rules.".to_owned()
        }
        "back" => {
            body.back = true;
            "No node follows the changed rules any more.".to_owned()
        }
        _ => return Err("write node, percent, judged, all or back".to_owned()),
    };
    if !body.back {
        body.wanted = Some(field("wanted").to_owned());
        let said = |name: &'static str| Some(field(name)).filter(|text| !text.is_empty());
        body.max_refused_percent = said("max_refused").map(percent).transpose()?;
        body.max_degraded_percent = said("max_degraded").map(percent).transpose()?;
        body.window_s = said("window").map(seconds).transpose()?;
    }
    Ok((body, done))
}

async fn shown(console: &Console, viewer: &Viewer, asked: Fields, done: Done) -> PageResult {
    let status = FleetStatus::from_service(&console.admin.service).await;
    let preview = match status.waits {
        true => { console.admin.preview(PreviewBody::default()).await }.unwrap_or_default(),
        false => PreviewStatus::default(),
    };
    let (shares, total) = most_moved(preview.shares);
    let page = RolloutPage {
        viewer,
        asked,
        status: &status,
        shares,
        total,
        waits: preview.waits,
        notes: rollout_notes(&status),
    };
    console.shell.answer("Rollout", viewer, &done, &page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_the_command_that_does_the_same() {
        let of = |fields: &str| {
            let step = step(&Fields::parse(fields.as_bytes()));
            step.map(|(body, _)| Change::Rollout(body).command())
        };
        for (fields, command) in [
            ("action=node&node=node-3", "--node 3"),
            ("action=percent&percent=10", "--percent 10"),
            (
                "action=percent&percent=10&max_refused=5+%25&max_degraded=0.5&window=1m",
                "--percent 10 --max-refused 5% --max-degraded 0.5% --window 60s",
            ),
            ("action=all&percent=10", "--all"),
            (
                "action=all&percent=10&max_refused=5",
                "--percent 100 --max-refused 5%",
            ),
            ("action=judged&percent=10", "--percent 100"),
            ("action=back&max_refused=5", "--back"),
        ] {
            assert_eq!(
                of(fields).unwrap(),
                format!("quell fleet rollout {command}")
            );
        }
        for wrong in [
            "action=node&node=x",
            "action=percent&percent=0",
            "action=percent&percent=101",
            "action=node&node=1&max_refused=many",
            "action=all&max_refused=many",
            "",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
