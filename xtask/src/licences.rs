//! The licences of everything by others in the programs: whether they allow distribution, and their
//! texts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use spdx::{Expression, ParseMode};

use crate::Result;
use crate::components::Component;

/// Licences under which a part of a program may be that is distributed under MIT or Apache-2.0.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "bzip2-1.0.6",
];

fn expression(component: &Component) -> Result<Expression> {
    Expression::parse_mode(&component.licence, ParseMode::LAX).map_err(|error| {
        let Component { name, licence, .. } = component;
        format!("{name}: cannot read the licence '{licence}': {error}").into()
    })
}

/// Names of the components whose licence is not among the allowed ones.
fn refused(components: &[Component]) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for component in components {
        let allowed = expression(component)?.evaluate(|requirement| {
            requirement
                .license
                .id()
                .is_some_and(|id| ALLOWED.contains(&id.name))
        });
        if !allowed {
            out.push(format!("{} ({})", component.name, component.licence));
        }
    }
    Ok(out)
}

/// The list of all components, and the text of each licence once.
///
/// # Errors
/// If the licence of a component does not allow distribution, or cannot be read.
pub(crate) fn text(components: &[Component]) -> Result<String> {
    let refused = refused(components)?;
    if !refused.is_empty() {
        return Err(format!(
            "licences that do not go with MIT OR Apache-2.0: {}",
            refused.join(", ")
        )
        .into());
    }
    let mut out = String::from(
        "RedwarFS is distributed under MIT or Apache-2.0, at your choice. The programs contain the\n\
         following works of other authors. The texts of their licences follow the list.\n\n",
    );
    // By text, without regard to how lines are broken.
    let mut texts: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for component in components {
        let name = format!("{} {}", component.name, component.version);
        let name = name.trim();
        writeln!(out, "{name:<40} {}", component.licence)?;
        for text in texts_of(component)? {
            let key = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let (_, users) = texts.entry(key).or_insert_with(|| (text, Vec::new()));
            if users.last().is_none_or(|last| last != name) {
                users.push(name.to_owned());
            }
        }
    }
    let mut texts: Vec<_> = texts.into_values().collect();
    texts.sort_by(|(_, a), (_, b)| a.cmp(b));
    for (text, users) in texts {
        write!(
            out,
            "\n{}\n{}\n\n{}\n",
            "-".repeat(79),
            users.join(", "),
            text.trim()
        )?;
    }
    Ok(out)
}

/// The texts that come with a component. If it has none: who wrote it, and the standard texts.
fn texts_of(component: &Component) -> Result<Vec<String>> {
    if !component.texts.is_empty() {
        return Ok(component.texts.clone());
    }
    let mut texts = Vec::new();
    if !component.authors.is_empty() {
        texts.push(format!("Copyright: {}", component.authors.join(", ")));
    }
    for requirement in expression(component)?.requirements() {
        match requirement.req.license.id() {
            Some(id) => texts.push(id.text().to_owned()),
            None => return Err(format!("{}: no text of its licence", component.name).into()),
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn component(name: &str, licence: &str, texts: &[&str]) -> Component {
        Component {
            name: name.into(),
            version: "1.0".into(),
            licence: licence.into(),
            authors: vec!["A. Author".into()],
            texts: texts.iter().map(ToString::to_string).collect(),
            purl: format!("pkg:cargo/{name}@1.0"),
            checksum: None,
            uses: Default::default(),
            direct: false,
        }
    }

    #[test]
    fn copyleft_is_refused() {
        let all = [
            component("a", "MIT", &["m"]),
            component("b", "GPL-3.0-only", &["g"]),
            component("c", "LGPL-2.1-or-later OR Apache-2.0", &["l"]),
            component("d", "MIT AND GPL-2.0-only", &["x"]),
        ];
        let error = text(&all).expect_err("GPL").to_string();
        assert!(error.contains("b (GPL-3.0-only)"), "{error}");
        assert!(error.contains("d (MIT AND GPL-2.0-only)"), "{error}");
        assert!(!error.contains("c (") && !error.contains("a ("), "{error}");
    }

    #[test]
    fn a_text_appears_once_and_a_missing_one_is_the_standard_text() {
        let all = [
            component("a", "MIT", &["same\ntext"]),
            component("b", "MIT", &["same text"]),
            component("c", "ISC", &[]),
        ];
        let text = text(&all).expect("text");
        assert!(text.contains("a 1.0, b 1.0\n\nsame\ntext\n"), "{text}");
        assert!(!text.contains("same text"), "{text}");
        assert!(text.contains("Copyright: A. Author"), "{text}");
        assert!(
            text.contains("THE SOFTWARE IS PROVIDED \"AS IS\" AND"),
            "{text}"
        );
    }
}
