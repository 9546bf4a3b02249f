//! The bill of materials: a CycloneDX document.

use serde_json::{Value, json};

use crate::components::Component;

/// The version of the programs, which is that of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A document that is the same whenever and wherever it is made: without time and serial number.
pub(crate) fn bill(components: &[Component]) -> Value {
    let root = format!("pkg:generic/redwarfs@{VERSION}");
    let direct: Vec<&str> = components
        .iter()
        .filter(|component| component.direct)
        .map(|component| component.purl.as_str())
        .collect();
    let mut dependencies = vec![json!({ "ref": root, "dependsOn": direct })];
    dependencies.extend(
        components
            .iter()
            .map(|component| json!({ "ref": component.purl, "dependsOn": component.uses })),
    );
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "redwarfs",
                "version": VERSION,
                "licenses": [{ "expression": env!("CARGO_PKG_LICENSE") }],
                "purl": root,
            },
        },
        "components": components.iter().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies,
    })
}

fn component(component: &Component) -> Value {
    let mut out = json!({
        "type": "library",
        "bom-ref": component.purl,
        "name": component.name,
        "licenses": [{ "expression": component.licence }],
        "purl": component.purl,
    });
    if !component.version.is_empty() {
        out["version"] = json!(component.version);
    }
    if let Some(checksum) = &component.checksum {
        out["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    out
}
