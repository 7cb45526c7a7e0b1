//! Plans, and numbers that are stored beside the rules.

use quell_core::rule::{Effect, StoredEffect};
use quell_rules::{Assignment, LoadedRules, Query, explain, parse_str, scenario, set_fields};

use crate::subject::Plain;

const SHOP: &str = "domain: shop
plans:
  free: { api: { rate: 10/s }, exports: { max: 1 } }
  gold: { api: { rate: 100/s, burst: 200 }, exports: { refuse: true } }
  staff: { api: { unlimited: true } }
rules:
  - { name: api, per: [tenant], rate: 5/s, burst: 7, plan: { entry: plan } }
  - { name: exports, per: [tenant], algorithm: concurrency, max: 2, lease: 9s }
";

fn shop() -> LoadedRules {
    let loaded = parse_str("shop.yaml", SHOP);
    assert_eq!(loaded.as_ref().err(), None);
    loaded.unwrap_or_default()
}

fn words(effect: &Effect) -> String {
    match effect {
        Effect::Limit(limit) => limit.to_string(),
        Effect::Unlimited => "unlimited".to_owned(),
        Effect::Refuse => "refused".to_owned(),
    }
}

#[test]
fn a_plan_takes_over_what_it_does_not_say() {
    let loaded = shop();
    let [api, exports] = loaded.domains[0].rules.as_slice() else {
        panic!("two rules");
    };
    let plans = |rule: &quell_core::rule::Rule| {
        let plans = rule.plans.as_ref().unwrap();
        let effects = plans.effects.iter();
        let effects = effects.map(|(plan, effect)| format!("{plan}: {}", words(effect)));
        (
            plans.entry.as_deref().map(str::to_owned),
            effects.collect::<Vec<_>>(),
        )
    };
    let (entry, effects) = plans(api);
    assert_eq!(entry.as_deref(), Some("plan"));
    assert_eq!(
        effects,
        [
            "free: token_bucket 10/s, burst 7",
            "gold: token_bucket 100/s, burst 200",
            "staff: unlimited"
        ]
    );
    let (entry, effects) = plans(exports);
    assert_eq!(entry, None, "only a stored override says the plan");
    assert_eq!(effects[0], "free: concurrency 1 at a time, lease 9s");
    assert_eq!(effects[1], "gold: refused");
}

#[test]
fn an_explanation_names_the_plan() {
    let loaded = shop();
    let told = |plan: &'static str| {
        let query = Query::new("shop").entry("tenant", "t").entry("plan", plan);
        explain(&loaded.domains, &query).to_string()
    };
    let gold = told("gold");
    assert!(
        gold.contains("+ api: token_bucket 100/s, burst 200\n      by plan gold\n"),
        "{gold}"
    );
    assert!(gold.contains("+ exports: concurrency 2"), "{gold}");
    let other = told("Gold");
    assert!(
        other.contains("+ api: token_bucket 5/s, burst 7\n      no plan `Gold` in this domain"),
        "{other}"
    );
    assert!(told("staff").contains("+ api: unlimited\n      by plan staff"));
}

#[test]
fn mistakes_in_plans_say_what_to_write() {
    let mistakes = |plans: &str| {
        let text = format!("domain: d\nplans: {plans}\nrules:\n  - {{ name: api, rate: 5/s }}\n");
        let problems = parse_str("f", &text).unwrap_err();
        let problems = problems.iter().map(ToString::to_string);
        problems.collect::<Vec<_>>()
    };
    for (plans, expected) in [
        (
            "[free]",
            "f:2:8: plans: a list does not belong here: write a map such as `{free: {api: {rate: 10/s}}, gold: {api: {rate: 100/s}}}`",
        ),
        (
            "{ free: { apo: { rate: 1/s } } }",
            "f:2:23: plans.free.apo: the document has no rule `apo`, did you mean `api`?",
        ),
        (
            "{ free: { api: { rat: 1/s } } }",
            "f:2:25: plans.free.api.rat: unknown field `rat`, did you mean `rate`?",
        ),
        (
            "{ free: { api: { when: { a: b }, rate: 1/s } } }",
            "f:2:31: plans.free.api.when: these numbers have no condition of their own: leave `when` out",
        ),
        (
            "{ free: { api: {} } }",
            "f:2:23: plans.free.api: it changes nothing: write a field of the limit, `unlimited: true` or `refuse: true`",
        ),
        (
            "{ free: { api: { algorithm: leaky_bucket, rate: 1/s } } }",
            "f:2:23: plans.free.api: these numbers are for the keys of the rule, which count as token_bucket and not as leaky_bucket: write the same algorithm, or another rule",
        ),
        (
            "{ \"\": { api: { rate: 1/s } } }",
            "f:2:10: plans: a single value in place of a name: write a name",
        ),
    ] {
        assert_eq!(mistakes(plans), [expected], "{plans}");
    }
}

/// Plans of limits with and without windows of the calendar.
const WINDOWS: &str = "
domain: shop
plans:
  gold:
    monthly: { limit: 500 }
    daily: { limit: 40/day }
    api: { rate: 100/s }
    whole: { unlimited: true }
rules:
  - { name: api, per: [tenant], rate: 5/s, plan: { entry: plan }, on_failure: deny }
  - { name: whole, per: [tenant], algorithm: fixed_window, limit: 9/month, align: calendar, on_failure: deny }
  - { name: daily, per: [tenant], algorithm: fixed_window, limit: 9/day, align: calendar, on_failure: deny }
  - { name: monthly, per: [tenant], algorithm: fixed_window, limit: 9/month, align: calendar,
      time_zone: Europe/Berlin, anchor: 5, on_failure: deny }
  - { name: other, per: [tenant], algorithm: fixed_window, limit: 9/month, align: calendar, on_failure: deny }
";

#[test]
fn a_plan_may_have_other_windows_of_the_calendar_beside_it() {
    let stored = parse_str("f", WINDOWS).unwrap().stored;
    for (rule, text, expected) in [
        (
            "monthly",
            "{\"plan\":\"gold\",\"anchor\":17}",
            "fixed_window 500 per calendar month from day 17 in Europe/Berlin",
        ),
        (
            "monthly",
            "{\"plan\":\"gold\",\"anchor\":\"2026-01-31\",\"time_zone\":\"Asia/Tokyo\"}",
            "fixed_window 500 per calendar month from day 31 in Asia/Tokyo",
        ),
        (
            "monthly",
            "{\"plan\":\"gold\",\"time_zone\":\"Asia/Tokyo\"}",
            "fixed_window 500 per calendar month from day 5 in Asia/Tokyo",
        ),
        (
            "daily",
            "{\"plan\":\"gold\",\"anchor\":\"20:00\"}",
            "fixed_window 40 per calendar day from 20:00 in UTC",
        ),
        // What has no windows of the calendar is as without them.
        ("api", "{\"plan\":\"gold\",\"anchor\":17}", "plan gold"),
        ("whole", "{\"plan\":\"gold\",\"anchor\":17}", "plan gold"),
        ("other", "{\"plan\":\"gold\",\"anchor\":17}", "plan gold"),
        (
            "daily",
            "{\"plan\":\"gold\",\"anchor\":17}",
            "numbers:1:25: anchor: a day begins at a time: write one such as `\"20:00\"`",
        ),
        (
            "monthly",
            "{\"plan\":\"gold\",\"anchor\":32}",
            "numbers:1:25: anchor: `32` is no day of a month: write 1 to 31",
        ),
        (
            "monthly",
            "{\"plan\":\"golf\",\"anchor\":17}",
            "numbers:1:1: the domain has no plan `golf`, did you mean `gold`?",
        ),
    ] {
        let read = match stored.read("shop", rule, text) {
            Ok(StoredEffect::Effect(effect)) => words(&effect),
            Ok(StoredEffect::Plan(plan)) => format!("plan {plan}"),
            Err(problems) => problems[0].to_string(),
        };
        assert_eq!(read, expected, "{rule} {text}");
    }
    for (rule, expected) in [
        ("monthly", true),
        ("daily", true),
        ("api", false),
        ("whole", false),
        ("other", false),
    ] {
        assert_eq!(
            stored.has_calendar("shop", rule, "gold"),
            expected,
            "{rule}"
        );
        assert!(!stored.has_calendar("shop", rule, "golf"));
    }
}

#[test]
fn stored_numbers_are_read_as_if_they_stood_in_the_file() {
    let stored = shop().stored;
    let read = |rule, text| match stored.read("shop", rule, text) {
        Ok(StoredEffect::Effect(effect)) => words(&effect),
        Ok(StoredEffect::Plan(plan)) => format!("plan {plan}"),
        Err(problems) => problems[0].to_string(),
    };
    for (rule, text, expected) in [
        ("api", "{\"rate\": \"20/s\"}", "token_bucket 20/s, burst 7"),
        (
            "api",
            "{rate: 20/s, burst: 40}",
            "token_bucket 20/s, burst 40",
        ),
        ("api", "{\"unlimited\": true}", "unlimited"),
        ("api", "{\"refuse\":true}", "refused"),
        ("api", "{\"plan\":\"gold\"}", "plan gold"),
        (
            "exports",
            "{\"max\": 9}",
            "concurrency 9 at a time, lease 9s",
        ),
        ("exports", "{\"plan\":\"staff\"}", "plan staff"),
        (
            "api",
            "{\"plan\":\"golf\"}",
            "numbers:1:1: the domain has no plan `golf`, did you mean `gold`?",
        ),
        (
            "api",
            "{\"plan\":\"gold\",\"rate\":\"1/s\"}",
            "numbers:1:1: a plan says all numbers but `anchor` and `time_zone`: leave the other fields out, or `plan`",
        ),
        (
            "api",
            "{\"rate\": \"20\"}",
            "numbers:1:10: rate: `20` has no period: write `20/s`, `20/min` or the like",
        ),
        (
            "api",
            "{\"max\": 4}",
            "numbers:1:9: max: `max` belongs to concurrency, and this is a token_bucket, the default: leave it out, or write `algorithm: concurrency`",
        ),
        (
            "api",
            "{\"algorithm\": \"leaky_bucket\", \"rate\": \"1/s\"}",
            "numbers:1:1: these numbers are for the keys of the rule, which count as token_bucket and not as leaky_bucket: write the same algorithm, or another rule",
        ),
        (
            "api",
            "{}",
            "numbers:1:1: it changes nothing: write a field of the limit, `unlimited: true` or `refuse: true`",
        ),
        (
            "api",
            "[]",
            "numbers:1:1: a list does not belong here: write the fields of a limit, such as `{rate: 200/s}`, `{plan: gold}`, `{unlimited: true}` or `{refuse: true}`",
        ),
        (
            "api",
            "",
            "numbers: there are no numbers here: write the fields of a limit, such as `{rate: 200/s}`, `{plan: gold}`, `{unlimited: true}` or `{refuse: true}`",
        ),
        (
            "apo",
            "{}",
            "numbers: there is no rule `apo` in the domain `shop`: write the name of one",
        ),
    ] {
        assert_eq!(read(rule, text), expected, "{rule} {text}");
    }
}

/// A plan in lines of its own, and one in braces.
const EDITED: &str = "domain: d
plans:
  free: &free
    api: { rate: 10/s }   # a try
  a.b: { api: { rate: 1/s }, api.v2: { rate: 2/s } }
  gold:
    api:
      rate: 100/s # paid
  same: *free
rules:
  - { name: api, per: [tenant], rate: 5/s, plan: { entry: plan } }
  - { name: api.v2, per: [tenant], rate: 5/s, plan: { entry: plan } }
  - { name: none, rate: 5/s }
";

fn edit(rule: &str, fields: &[&str]) -> Result<String, String> {
    let fields = fields.iter().map(|text| text.parse::<Assignment>());
    let fields = fields.collect::<Result<Vec<_>, _>>();
    let fields = fields.map_err(|error| format!("{error:?}"))?;
    let edited = set_fields("f", EDITED, None, rule, &fields);
    edited
        .map(|edited| edited.text)
        .map_err(|error| error.to_string())
}

#[test]
fn what_a_plan_says_for_a_rule_is_edited_in_place() {
    for (rule, fields, old, new) in [
        (
            "api",
            &["plans.gold.api.rate=200/s"][..],
            "      rate: 100/s # paid\n",
            "      rate: 200/s # paid\n",
        ),
        (
            "api",
            &["plans.gold.api.burst=400", "plans.gold.api.rate=200/s"],
            "      rate: 100/s # paid\n",
            "      rate: 200/s # paid\n      burst: 400\n",
        ),
        (
            "api.v2",
            &["plans.a.b.api.v2.burst=7"],
            "api.v2: { rate: 2/s }",
            "api.v2: { rate: 2/s, burst: 7 }",
        ),
        (
            "api",
            &["plans.a.b.api.rate=3/s", "rate=4/s"],
            "{ api: { rate: 1/s }",
            "{ api: { rate: 3/s }",
        ),
    ] {
        let mut expected = EDITED.replacen(old, new, 1);
        if fields.contains(&"rate=4/s") {
            expected = expected.replacen("[tenant], rate: 5/s", "[tenant], rate: 4/s", 1);
        }
        assert_eq!(edit(rule, fields).unwrap(), expected, "{fields:?}");
    }
}

#[test]
fn what_of_a_plan_cannot_be_set_says_what_to_do() {
    for (rule, field, expected) in [
        (
            "api",
            "plans.golf.api.rate=1/s",
            "`plans.golf.api.rate`: there is no plan `golf`, did you mean `gold`?",
        ),
        (
            "api",
            "plans.platinum.api.rate=1/s",
            "there is no plan `platinum` beside the rule: to add one, pull the rules",
        ),
        (
            "none",
            "plans.gold.none.rate=1/s",
            "the plan `gold` says nothing for the rule: to add numbers, pull the rules",
        ),
        (
            "api",
            "plans.gold.none.rate=1/s",
            "this is of another rule: of `api` write plans.PLAN.api.FIELD",
        ),
        (
            "api",
            "plans.gold.api.rate=100",
            "`plans.gold.api.rate=100` has no period, and it was `100/s`",
        ),
        (
            "api",
            "plans.gold.api.rat=1/s",
            "plans.gold.api.rat: unknown field `rat`, did you mean `rate`?",
        ),
        (
            "api",
            "plans.same.api.rate=1/s",
            "`plans.same.api.rate` is written by way of an alias: pull the rules",
        ),
    ] {
        let error = edit(rule, &[field]).unwrap_err();
        assert!(error.contains(expected), "{field}: {error}");
    }
}

/// A test of rules says the plan as a call does.
#[test]
fn a_scenario_names_a_plan() {
    let tests = "tests:
  - name: a plan's burst, and a key that keeps its use when the plan changes
    steps:
      - { at: 0s, entries: { tenant: acme, plan: gold }, cost: 200, expect: { outcome: allow } }
      - { at: 0s, entries: { tenant: acme, plan: gold }, expect: { outcome: deny } }
      - { at: 0s, entries: { tenant: acme }, expect: { outcome: deny } }
      - { at: 0s, entries: { tenant: acme, plan: staff }, expect: { outcome: allow } }
";
    let rules = SHOP.replace('\n', "\n  ");
    let text = format!("rules:\n  {}\n{tests}", rules.trim_end());
    let scenarios = scenario::parse_str("f.test.yaml", &text, "");
    let scenarios = scenarios.unwrap_or_else(|told| panic!("{told:#?}"));
    let report = scenario::run(&scenarios, &mut Plain::default());
    assert!(report.is_ok(), "{report}");
}
