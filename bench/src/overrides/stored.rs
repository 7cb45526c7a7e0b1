//! Stored overrides: a million numbers of single keys beside the rules.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use quell::override_store::{
    ApplyOutcome, Change, Cursor, EmbeddedOverrides, MAX_OVERRIDE_BATCH, OverrideId, OverrideStore,
    StoredNumbers, StoredOverride,
};
use quell::store::memory::MemoryStore;
use quell::{KeyOverride, Limiter, OverrideRank, Span};
use quell_core::rule::StoredEffect;
use quell_core::time::Wall;
use quell_rules::{StoredFields, parse_str};
use tokio::runtime::Runtime;

use super::wire::{self, tenant};
use super::{Settings, ask, file, limiter, queries};
use crate::ALLOCATOR;
use crate::report::{Report, ratio};
use crate::table::Table;

const QUESTION: &str = "What do many stored overrides cost?";
const OVERHEAD: &str = "`without`, `others` and `stored`: ns of processor time per call of \
    `Limiter::try_acquire_local` on one thread, of a limiter without overrides, and with them for tenants that have \
    none, and for tenants that have one of a thousand different numbers; `--tenants` ask in turn. `bytes`: what a \
    limiter allocates for each. `put`: changes of one key a second in a limiter. `load`: s to read all from the file of \
    a data directory and to bring them into force; `set`: changes a second that the file takes from a thousand callers, \
    each on the disk before its answer. On the wire, `QUELL.ACQUIRE` in pipelines of 50 for `--tenants` at random: the \
    client shares the machine's cores, so the processor time of the server counts.";

/// Different numbers.
const NUMBERS: usize = 1_000;

/// Callers that write at a time.
const CALLERS: usize = 1_000;

/// Changes that are measured.
const CHANGES: usize = 100_000;

pub(super) fn run(settings: &Settings) -> Result<()> {
    if !settings.without_wire {
        wire::check()?;
    }
    let case = settings.overrides.to_string();
    let mut report = Report::new("overrides", QUESTION, OVERHEAD, settings)?;
    let fields = parse_str("overrides.yaml", &file(0, 1, None));
    let fields = fields
        .map_err(|problems| anyhow::anyhow!("{:?}", problems.first()))?
        .stored;
    // Before there are holes in the heap, so that both lie alike.
    let (stored, others) = (
        queries(0, settings.tenants),
        queries(settings.overrides, settings.tenants),
    );
    let without = limiter(0, 1)?;
    let with = limiter(0, 1)?;
    let before = ALLOCATOR.allocated();
    for from in (0..settings.overrides).step_by(MAX_OVERRIDE_BATCH) {
        let until = settings.overrides.min(from + MAX_OVERRIDE_BATCH);
        put(&with, &fields, from..until);
    }
    let bytes = ALLOCATOR.allocated().saturating_sub(before) as f64;
    report.add(&case, "bytes", "bytes", bytes / settings.overrides as f64);
    ensure!(
        with.override_count() == settings.overrides,
        "{} are in force",
        with.override_count()
    );
    // Both have the states of all tenants, so that these lie alike.
    for limiter in [&without, &with] {
        ask(limiter, &stored, settings.tenants)?;
        ask(limiter, &others, settings.tenants)?;
    }
    for _ in 0..settings.runs {
        for (name, limiter, queries) in [
            ("without", &without, &others),
            ("others", &with, &others),
            ("stored", &with, &stored),
        ] {
            report.add(&case, name, "ns", ask(limiter, queries, settings.calls)?);
        }
        let begun = Instant::now();
        for place in 0..CHANGES {
            let tenant = place * 7_919 % settings.overrides;
            put(&with, &fields, tenant..tenant + 1);
        }
        report.add(
            &case,
            "put",
            "per second",
            CHANGES as f64 / begun.elapsed().as_secs_f64(),
        );
    }
    drop(with);
    let on_the_wire = embedded(settings, &fields, &case, &mut report)?;
    let columns = ["without", "others", "stored", "bytes", "put", "set", "load"];
    let mut table = Table::new(
        ["overrides"]
            .into_iter()
            .chain(columns)
            .chain(["others / without", "stored / without"])
            .map(str::to_owned),
    );
    let figures = columns.map(|name| {
        let median = report.median(&case, name);
        median.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.1}"))
    });
    let over = |name| ratio(report.median(&case, name), report.median(&case, "without"));
    let ratios = [over("others"), over("stored")];
    table.row([case.clone()].into_iter().chain(figures).chain(ratios));
    report.finish(&format!("{table}\n{on_the_wire}"), settings.json)
}

/// The numbers of a tenant.
fn numbers(tenant: usize) -> String {
    format!("{{\"rate\":\"{}/h\"}}", 1_000 + tenant % NUMBERS)
}

/// Brings the overrides of some tenants into force.
fn put(limiter: &Limiter<MemoryStore>, fields: &StoredFields, tenants: std::ops::Range<usize>) {
    let names: Vec<(String, Arc<str>)> = tenants
        .map(|tenant| (format!("tenant-{tenant}"), Arc::from(numbers(tenant))))
        .collect();
    let all = names.iter().map(|(name, numbers)| KeyOverride {
        domain: "shop",
        rule: "api-per-tenant",
        entries: vec![("tenant", name)],
        rank: OverrideRank::Rule,
        spans: vec![Span {
            from: None,
            until: None,
            numbers: Arc::clone(numbers),
        }],
    });
    let all: Vec<KeyOverride<'_>> = all.collect();
    limiter.change_overrides(&all, &reader(fields));
}

pub(super) fn reader(
    fields: &StoredFields,
) -> impl Fn(&str, &str, &str) -> Option<StoredEffect> + '_ {
    |domain, rule, text| fields.read(domain, rule, text).ok()
}

fn change(number: usize) -> Result<Change> {
    let entries = [(Arc::from("tenant"), Arc::from(tenant(number)))];
    let record = StoredOverride {
        id: OverrideId::new("shop", Some(Arc::from("api-per-tenant")), entries, false)?,
        numbers: StoredNumbers::fields(&numbers(number))?,
        from: None,
        until: None,
        prorated: None,
        reason: Arc::from("measured"),
        by: Arc::from("bench"),
        at: Wall::from_nanos(1_800_000_000_000_000_000),
        revision: 0,
    };
    Ok(Change::Put {
        record,
        expected: None,
    })
}

/// Measures the file of a data directory, and a server that has it. Returns a table of the server.
fn embedded(
    settings: &Settings,
    fields: &StoredFields,
    case: &str,
    report: &mut Report,
) -> Result<String> {
    let folder = std::env::temp_dir().join(format!("quell-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured =
        embedded_in(&folder, settings, fields, case, report).and_then(|()| {
            match settings.without_wire {
                true => Ok(String::new()),
                false => wire::run(settings, &folder, report),
            }
        });
    std::fs::remove_dir_all(&folder)?;
    measured
}

fn embedded_in(
    folder: &std::path::Path,
    settings: &Settings,
    fields: &StoredFields,
    case: &str,
    report: &mut Report,
) -> Result<()> {
    let runtime = Runtime::new()?;
    let store = Arc::new(EmbeddedOverrides::open(folder)?);
    for from in (0..settings.overrides).step_by(MAX_OVERRIDE_BATCH) {
        let until = settings.overrides.min(from + MAX_OVERRIDE_BATCH);
        let changes = (from..until).map(change).collect::<Result<Vec<_>>>()?;
        let applied = runtime.block_on(store.apply(&changes))?;
        ensure!(
            matches!(applied, ApplyOutcome::Applied { .. }),
            "{applied:?}"
        );
    }
    for _ in 0..settings.runs {
        let begun = Instant::now();
        runtime.block_on(write(&store, settings.overrides))?;
        report.add(
            case,
            "set",
            "per second",
            CHANGES as f64 / begun.elapsed().as_secs_f64(),
        );
    }
    drop(store);
    for _ in 0..settings.runs {
        let begun = Instant::now();
        let store = EmbeddedOverrides::open(folder)?;
        let limiter = limiter(0, 1)?;
        runtime.block_on(load(&store, &limiter, fields))?;
        report.add(case, "load", "s", begun.elapsed().as_secs_f64());
        ensure!(limiter.override_count() == settings.overrides);
    }
    Ok(())
}

async fn write(store: &Arc<EmbeddedOverrides>, overrides: usize) -> Result<()> {
    let callers = (0..CALLERS).map(|caller| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            for place in 0..CHANGES / CALLERS {
                let tenant = (place * CALLERS + caller) * 7_919 % overrides;
                store.apply(&[change(tenant)?]).await?;
            }
            anyhow::Ok(())
        })
    });
    let callers: Vec<_> = callers.collect();
    for caller in callers {
        caller.await??;
    }
    Ok(())
}

async fn load(
    store: &EmbeddedOverrides,
    limiter: &Limiter<MemoryStore>,
    fields: &StoredFields,
) -> Result<()> {
    let mut list = limiter.list_overrides();
    let mut after: Option<Cursor> = None;
    loop {
        let page = store.all(after.as_ref(), MAX_OVERRIDE_BATCH).await?;
        let all = page.overrides.iter().map(key_override);
        list.add(&all.collect::<Vec<_>>(), &reader(fields));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    list.end();
    Ok(())
}

/// The numbers of a key that are stored for one rule.
pub(super) fn key_override(record: &StoredOverride) -> KeyOverride<'_> {
    let entries = record.id.entries.iter();
    KeyOverride {
        domain: &record.id.domain,
        rule: record.id.rule.as_deref().unwrap_or("*"),
        entries: entries.map(|(name, value)| (&**name, &**value)).collect(),
        rank: OverrideRank::new(record.id.has_end, true),
        spans: match &record.numbers {
            StoredNumbers::Fields(text) => vec![Span {
                from: record.from,
                until: record.until,
                numbers: Arc::clone(text),
            }],
            _ => Vec::new(),
        },
    }
}
