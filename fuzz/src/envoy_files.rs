//! Files of envoyproxy/ratelimit, and questions of `/json`: what was read chooses rules that are there, is the same when
//! it is read again, and can be written as rules.

use quell_core::descriptor::{Descriptor, Query};
use quell_core::rule::DomainRules;
use quell_envoy::config::{ConfigOptions, ImportedRules, Tree, load};
use quell_envoy::json;
use quell_rules::TextFile;

/// Tries one input.
///
/// # Panics
///
/// When a promise does not hold.
pub fn fuzz(bytes: &[u8]) {
    if let Ok(request) = json::read_request(bytes) {
        assert!(request.descriptors.len() <= bytes.len());
    }
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let options = ConfigOptions {
        merges_domains: true,
        ..ConfigOptions::default()
    };
    let file = || TextFile {
        name: "fuzzed".to_owned(),
        text: text.to_owned(),
    };
    let (first, again) = (load([file()], options), load([file()], options));
    assert_eq!(first, again);
    let Ok(domains) = first else {
        return;
    };
    let _ = ImportedRules::new(&domains);
    for domain in &domains {
        choose(domain);
    }
}

/// Asks with the words of each rule's name.
fn choose(domain: &DomainRules) {
    let selector = domain.selector.as_ref();
    let tree: &Tree = selector
        .and_then(|selector| selector.get())
        .unwrap_or_else(|| {
            panic!("{} has no tree", domain.domain);
        });
    for rule in &domain.rules {
        let entries = rule
            .name
            .split('.')
            .map(|part| part.split_once('_').unwrap_or((part, "")));
        let query = entries.fold(Query::new("fuzzed"), |query, (key, value)| {
            query.entry(key, value)
        });
        for found in tree.find_all(query.descriptors()).iter().flatten() {
            let descriptor: &Descriptor<'_> = &query.descriptors()[0];
            let name = found.stat_name(descriptor);
            assert!(name.starts_with(&*domain.domain), "{name}");
            if let quell_envoy::config::LeafLimit::Window { rule, .. } = &found.leaf.limit {
                assert!(*rule < domain.rules.len());
            }
        }
    }
}
