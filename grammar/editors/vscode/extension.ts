// The client: starts `forgec lsp`, and shows the pages that it makes.
import { commands, ExtensionContext, Uri, ViewColumn, window, workspace } from "vscode";
import { LanguageClient, LanguageClientOptions } from "vscode-languageclient/node";

const INSTALL = 'pip install "forgedsl[lsp]"';
let client: LanguageClient | undefined;

export async function activate(context: ExtensionContext): Promise<void> {
  const ask = (command: string) => async () => {
    const uri = window.activeTextEditor?.document.uri;
    if (uri !== undefined) await commands.executeCommand(command, uri.toString());
  };
  context.subscriptions.push(
    commands.registerCommand("forge.showGraph", ask("forge.graph")),
    commands.registerCommand("forge.showPlan", ask("forge.plan")),
    commands.registerCommand("forge.restart", async () => {
      await client?.stop();
      await start();
    }),
  );
  await start();
}

export const deactivate = () => client?.stop();

async function start(): Promise<void> {
  const [command, ...args] = workspace.getConfiguration("forge").get<string[]>("server")!;
  const options: LanguageClientOptions = {
    documentSelector: [{ language: "forge" }],
    synchronize: { fileEvents: workspace.createFileSystemWatcher("**/*.{forge,py,jsonl}") },
    middleware: {
      executeCommand: async (name, given, next) => {
        const page = await next(name, given);
        await show(name, given[0], page);
        return page;
      },
    },
  };
  client = new LanguageClient("forge", "ForgeDSL", { command, args }, options);
  try {
    await client.start();
  } catch (error) {
    const message = `${command} ${args.join(" ")} does not start. Install it by ${INSTALL}, `
      + "or set forge.server to where it is.";
    window.showErrorMessage(`ForgeDSL: ${message}`);
  }
}

// A page of the server beside the text; without one there is a mistake, which says so itself.
async function show(command: string, uri: string, page: unknown): Promise<void> {
  const name = Uri.parse(uri).path.split("/").pop();
  if (typeof page !== "string") {
    window.showInformationMessage(`${name} cannot be planned as it is: see its problems.`);
  } else if (command === "forge.graph") {
    const made = window.createWebviewPanel("forge.graph", `${name}: graph`, ViewColumn.Beside, {
      enableScripts: true,
    });
    made.webview.html = page;
  } else {
    const document = await workspace.openTextDocument({ content: page, language: "plaintext" });
    await window.showTextDocument(document, ViewColumn.Beside, true);
  }
}
