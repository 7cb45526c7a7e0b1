//! `quell fleet status`: the fleet, as its leader sees it.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use quell_coordinator::call_reports::CallsStatus;
use quell_coordinator::report::{
    Kind, head, key_words, notes, now_ms, rate, state, troubles_and_others, whose, within,
};
use quell_coordinator::status::{FleetStatus, LimitStatus, NodeStatus};
use quell_host::refused_key::between;
use quell_host::wait;
use quell_protocol::printable;

use super::admin::Coordinator;
use crate::exit::Exit;
use crate::output::{self, Paint};
use crate::table::TextTable;

/// Interval of --watch: shares move within 1.5 s.
const EVERY: Duration = Duration::from_secs(1);

/// Moves the cursor of a terminal to its top left corner and clears what is there.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// Show the nodes of a fleet, their shares, and who leads
///
/// Exit code 1 if no coordinator leads.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  quell fleet status
  quell fleet status --watch --limit api
  quell fleet status --url https://a.internal:7601 --json")]
pub(super) struct Status {
    /// Show it again every second, until Ctrl-C
    #[arg(long, short)]
    watch: bool,

    /// Only the shares of this limit
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,

    #[command(flatten)]
    of: Coordinator,

    /// Print the fleet as JSON, as the coordinator gave it
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(&self) -> Result<Exit> {
        match self.watch {
            true => self.watch(),
            false => self.show(b""),
        }
    }

    /// Shows it until Ctrl-C, which also ends it while a coordinator is slow to answer, or until nobody reads it.
    fn watch(&self) -> Result<Exit> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("cannot wait for Ctrl-C")?;
        let status = self.clone();
        let exit = runtime.block_on(async {
            tokio::select! {
                stopped = tokio::signal::ctrl_c() => {
                    stopped.context("cannot wait for Ctrl-C")?;
                    Ok(Exit::Fine)
                }
                shown = tokio::task::spawn_blocking(move || status.show_again()) => shown?,
            }
        });
        runtime.shutdown_background();
        exit
    }

    /// # Errors
    /// If no coordinator answers the first time: the address may be wrong. Later one may be gone for a moment,
    /// and somebody watches for just that.
    fn show_again(&self) -> Result<Exit> {
        let clear = match Paint::stdout().is_on() && !self.json {
            true => CLEAR,
            false => b"",
        };
        self.show(clear)?;
        while !output::reader_has_gone() {
            std::thread::sleep(EVERY);
            if let Err(error) = self.show(clear) {
                output::complain(&error);
            }
        }
        Ok(Exit::Fine)
    }

    fn show(&self, clear: &[u8]) -> Result<Exit> {
        let leader = self.of.leader()?;
        output::bytes(clear)?;
        let exit = Exit::fine_if(leader.status.leads);
        if self.json {
            output::json_text(&leader.text)?;
            return Ok(exit);
        }
        let paint = Paint::stdout();
        for line in lines(&leader.status, self.limit.as_deref(), paint) {
            output::line(line)?;
        }
        if let Some(why) = leader.not_asked() {
            output::line(format!("{} {why}", paint.yellow("note:")))?;
        }
        Ok(exit)
    }
}

fn lines(status: &FleetStatus, limit: Option<&str>, paint: Paint) -> Vec<String> {
    // Nodes wrote some of it, and a line stays one.
    let shown = |text: &str| printable(text).into_owned();
    let line = |(kind, text): (Kind, String)| match kind {
        Kind::Plain => shown(&text),
        Kind::Note => format!("{} {}", paint.yellow("note:"), shown(&text)),
        Kind::Trouble => format!("{} {}", paint.red("trouble:"), shown(&text)),
    };
    // What is wrong is read first.
    let (troubles, others) = troubles_and_others(notes(status, now_ms()));
    let mut lines: Vec<String> = troubles.into_iter().map(line).collect();
    lines.push(shown(&head(status)));
    lines.extend(others.into_iter().map(line));
    lines.extend(
        status
            .calls
            .iter()
            .flat_map(|calls| call_lines(status, calls))
            .map(|text| shown(&text)),
    );
    if !status.leads {
        return lines;
    }
    let is_shown = |name: &str| limit.is_none_or(|only| only == name);
    lines.push(String::new());
    let limits = status.limits.iter().filter(|limit| is_shown(&limit.name));
    lines.extend(limit_table(limits).lines(paint));
    lines.push(String::new());
    lines.extend(node_table(&status.nodes, is_shown).lines(paint));
    lines
}

/// Lines about calls: decision times, the keys that are refused most, and the number of bans.
fn call_lines(status: &FleetStatus, calls: &CallsStatus) -> Vec<String> {
    let decided = format!(
        "calls: {}/s, {}/s denied, {}/s degraded, half decided within {}, 99 % within {}; {}",
        rate(calls.decisions_per_s),
        rate(calls.denied_per_s),
        rate(calls.degraded_per_s),
        within(calls.p50_ns),
        within(calls.p99_ns),
        whose(status, calls)
    );
    let bans = between(calls.bans_at_least..=calls.bans_at_most);
    let most = calls.refused.first().map(|refused| {
        let (key, times) = (&refused.key, between(refused.at_least..=refused.refusals));
        let (entries, domain, rule) = (key_words(&key.entries), &key.domain, &key.rule);
        format!("refused most often: {entries} by {rule} of {domain}, {times} times; ")
    });
    let unknown = match calls.bans_unknown_nodes {
        0 => String::new(),
        nodes => format!(", not known at {nodes} nodes"),
    };
    let most = most.unwrap_or_default();
    vec![decided, format!("{most}banned keys: {bans}{unknown}")]
}

fn limit_table<'a>(limits: impl Iterator<Item = &'a LimitStatus>) -> TextTable<4> {
    let mut table = TextTable::new(["LIMIT", "RATE/S", "MAY USE/S", "SILENT/S"]);
    for limit in limits {
        let name = match &limit.group {
            Some(group) => format!("{} ({group})", limit.name),
            None => limit.name.clone(),
        };
        table.push([
            name,
            rate(limit.rate_per_s),
            rate(limit.may_use_per_s),
            rate(limit.held_by_silent_per_s),
        ]);
    }
    table
}

fn node_table(nodes: &[NodeStatus], is_shown: impl Fn(&str) -> bool) -> TextTable<11> {
    let mut table = TextTable::new([
        "NODE", "STATE", "WEIGHT", "START", "HEARD", "LEASE", "PLAN", "LIMIT", "SHARE/S",
        "DEMAND/S", "STATIC/S",
    ]);
    for node in nodes {
        let follows = node
            .follows
            .map_or_else(|| "?".to_owned(), |plan| plan.to_string());
        let about = [
            match node.groups.as_slice() {
                [] => node.member.to_string(),
                groups => format!("{} ({})", node.member, groups.join(", ")),
            },
            state(node.state).to_owned(),
            node.weight.to_string(),
            node.incarnation.to_string(),
            format!("{} ago", wait::words(node.heard_ms_ago)),
            match node.lease_left_ms {
                0 => "none".to_owned(),
                left => wait::words(left.next_multiple_of(100)),
            },
            follows,
        ];
        let mut about = Some(about);
        let shares = node.limits.iter().filter(|share| is_shown(&share.name));
        let shares = shares.map(|share| {
            let numbers = [share.may_use_per_s, share.demand_per_s, share.static_per_s];
            (share.name.clone(), numbers.map(rate))
        });
        let mut shares = shares.peekable();
        if shares.peek().is_none() {
            let [member, state, weight, start, heard, lease, plan] =
                about.take().unwrap_or_default();
            let none = String::new;
            table.push([
                member,
                state,
                weight,
                start,
                heard,
                lease,
                plan,
                none(),
                none(),
                none(),
                none(),
            ]);
        }
        for (name, [share, demand, base]) in shares {
            let [member, state, weight, start, heard, lease, plan] =
                about.take().unwrap_or_default();
            table.push([
                member, state, weight, start, heard, lease, plan, name, share, demand, base,
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of a fleet with two nodes, of which the second has nothing.
    fn of_two_nodes() -> FleetStatus {
        let share = r#"{"name": "api", "may_use_per_s": 700.25, "share_per_s": 700, "demand_per_s": 800,
            "static_per_s": 500, "due_static_per_s": 500, "floor_per_s": 50}"#;
        let node = |member: u32, limits: &str| {
            format!(
                r#"{{"member": {member}, "incarnation": "3", "weight": 1, "groups": [], "state": "active",
                "draining": false, "heard_ms_ago": 120, "lease_left_ms": {}, "revision": "2", "follows": "2", "version": 9, "applied": 9,
                "limits": [{limits}]}}"#,
                if member == 1 { 9_880 } else { 0 }
            )
        };
        let (one, two) = (
            node(1, &format!("{share}, {}", share.replace("api", "pay"))),
            node(2, ""),
        );
        let text = format!(
            r#"{{"leads": true, "leader": {{"url": "http://a:7600", "admin": null}}, "store_trouble": null,
            "refused": null, "restored": null, "epoch": "261124-7", "grants": true, "revision": "2",
            "awaits_nodes": false, "answered_window_s": 30, "rejected_joins": [],
            "waits": false, "rollout": null, "applied": 2, "nodes": [{one}, {two}],
            "limits": [{{"name": "api", "group": null, "rate_per_s": 1000, "may_use_per_s": 1000,
            "held_by_silent_per_s": 0, "most_per_s": 0, "reserved_per_s": 0, "shortage": null,
            "asked_total": 0, "refused_total": 0, "degraded_total": 0}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn people_see_who_has_what() {
        let mut status = of_two_nodes();
        let shown = lines(&status, None, Paint::stdout());
        assert_eq!(
            shown,
            [
                "http://a:7600 leads, epoch 261124-7; plan 2 applied by 2/2 nodes",
                "",
                "LIMIT  RATE/S  MAY USE/S  SILENT/S",
                "api    1000    1000       0",
                "",
                "NODE  STATE   WEIGHT  START  HEARD      LEASE  PLAN  LIMIT  SHARE/S  DEMAND/S  STATIC/S",
                "1     active  1       3      120ms ago  9.9s   2     api    700.2    800       500",
                "                                                     pay    700.2    800       500",
                "2     active  1       3      120ms ago  none   2",
            ]
        );
        assert!(
            !lines(&status, Some("api"), Paint::stdout())
                .concat()
                .contains("pay")
        );
        let calls = r#"{"nodes": 1, "decisions_per_s": 120.25, "allowed_per_s": 99.75, "denied_per_s": 20.5, "would_refuse_per_s": 0,
            "degraded_per_s": 3, "p50_ns": 4000, "p99_ns": null, "window_ms": 59001,
            "refused": [{"domain": "shop", "rule": "login", "entries": {"user": "ann"}, "refusals": 9, "at_least": 7}],
            "refused_window_ms": 1, "bans": [], "bans_at_least": 2, "bans_at_most": 2, "bans_unknown_nodes": 1}"#;
        status.calls = Some(serde_json::from_str(calls).unwrap());
        assert_eq!(
            lines(&status, None, Paint::stdout())[1..3],
            [
                "calls: 120.2/s, 20.5/s denied, 3/s degraded, half decided within 4us, 99 % within –; the last 1m at 1/2 nodes; nodes in other \
                 programs do not say",
                "refused most often: user=ann by login of shop, 7 to 9 times; banned keys: 2, not known at 1 nodes",
            ]
        );
        // What nodes wrote stays on its line, and a number beyond sense is none.
        status.refused = Some("a\nb\u{1b}[2J\rc".to_owned());
        status.limits[0].rate_per_s = 1e19;
        let shown = lines(&status, None, Paint::stdout());
        let refused = |line: &String| line.ends_with("a\\u{a}b\\u{1b}[2J\\u{d}c");
        assert!(shown.iter().any(refused), "{shown:?}");
        assert!(
            shown
                .iter()
                .all(|line| !line.contains(['\n', '\r', '\u{1b}'])),
            "{shown:?}"
        );
        assert!(shown.concat().contains("beyond 10^15"), "{shown:?}");
        (status.refused, status.limits[0].rate_per_s) = (None, 1_000.0);
        (status.awaits_nodes, status.limits[0].reserved_per_s) = (true, 250.5);
        let told = notes(&status, 0);
        let ends = "run `quell fleet restored --all-heard` to";
        assert!(
            matches!(&told[..], [(Kind::Trouble, why), (Kind::Note, much)]
                if why.contains(ends) && much == "api: 250.5 of 1000/s are reserved"),
            "{told:?}"
        );
    }

    /// A dead node is told of in the first line: since when, what lies idle, and what to do.
    #[test]
    fn a_silent_node_is_in_the_first_line() {
        let node = |member: u32, state: &str, ago: u64| {
            format!(
                r#"{{"member": {member}, "incarnation": "{}", "weight": 1, "groups": [], "state": "{state}",
                "draining": false, "heard_ms_ago": {ago}, "lease_left_ms": 0, "revision": "3", "follows": "3", "version": 9,
                "applied": 9, "limits": []}}"#,
                member + 4
            )
        };
        let fleet = |nodes: &[String], applied: usize, idle: u32| {
            let text = format!(
                r#"{{"leads": true, "leader": {{"url": "http://a:7600", "admin": null}}, "store_trouble": null,
                "refused": null, "restored": null, "epoch": "7", "grants": true, "revision": "3",
                "awaits_nodes": false, "answered_window_s": 30, "rejected_joins": [],
            "waits": false, "rollout": null, "applied": {applied}, "nodes": [{}],
                "limits": [{{"name": "api", "group": null, "rate_per_s": 200, "may_use_per_s": 200,
                "held_by_silent_per_s": {idle}, "most_per_s": 0, "reserved_per_s": 0, "shortage": null,
            "asked_total": 0, "refused_total": 0, "degraded_total": 0}}]}}"#,
                nodes.join(", ")
            );
            serde_json::from_str::<FleetStatus>(&text).unwrap()
        };
        let (alive, dead) = (node(1, "active", 120), node(3, "silent", 34_200));
        let status = fleet(&[alive.clone(), dead.clone()], 1, 67);
        let (troubles, others) = troubles_and_others(notes(&status, 1_774_742_434_200));
        assert_eq!(
            troubles[0].1,
            "node 3 is silent since 2026-03-29T00:00:00Z (35s ago): 67 of 200/s of api lie idle; start it again, \
             or if it is dead for certain `quell fleet fence 3 --incarnation 7`"
        );
        assert!(others.iter().all(|(kind, _)| *kind != Kind::Trouble));
        let shown = lines(&status, None, Paint::stdout());
        assert!(shown[0].contains("node 3 is silent since"), "{shown:?}");
        assert_eq!(
            shown[1],
            "http://a:7600 leads, epoch 7; plan 3 applied by 1/2 nodes, 1 silent"
        );
        let many: Vec<_> = (4..9).map(|id| node(id, "silent", 20_000)).collect();
        let status = fleet(&[&many[..], &[dead]].concat(), 0, 0);
        let told = &notes(&status, 1_774_742_434_200)[0].1;
        assert!(
            told.starts_with("6 nodes are silent (3, 4, 5 and 3 more nodes), the first since")
                && told.contains("nothing lies idle for it; start them again"),
            "{told}"
        );
        assert_eq!(notes(&fleet(&[alive], 1, 0), 0), []);
    }
}
