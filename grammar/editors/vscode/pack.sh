#!/bin/sh
# Packs build/forge-language.vsix: the client, bundled, with the grammar and the licence of the
# project. Needs npm of Node 20 or newer; the packages are those of package-lock.json.
set -eu
cd "$(dirname "$0")/../../.."
command -v npm >/dev/null || { echo "vscode: needs npm (apt-get install npm, or Node 20)" >&2; exit 2; }
from=grammar/editors/vscode to=build/vscode
mkdir -p "$to"
cp "$from"/package.json "$from"/package-lock.json "$from"/extension.ts "$from"/tsconfig.json \
    "$from"/language-configuration.json "$from"/README.md "$from"/.vscodeignore \
    grammar/forge.tmLanguage.json LICENSE "$to"
cd "$to"
npm ci --ignore-scripts --no-audit --no-fund --silent
npx tsc
npx esbuild extension.ts --bundle --platform=node --format=cjs --external:vscode --minify \
    --log-level=warning --outfile=out/extension.js
npx vsce package --no-dependencies --out ../forge-language.vsix >/dev/null
echo "build/forge-language.vsix"
