@echo off
rem Called by edgespec.cmd and test.cmd, which set ROOT: creates .venv if it is missing or out of date.
set "INSTALLED=%ROOT%\.venv\installed"
if not "%~1"=="" if not exist "%INSTALLED%\dev" goto make
if not exist "%ROOT%\.venv\Scripts\edgespec.exe" goto make
fc /b "%ROOT%\pyproject.toml" "%INSTALLED%\pyproject.toml" >nul 2>&1 || goto make
set /p HOME_OF_VENV=<"%INSTALLED%\root"
if /i not "%HOME_OF_VENV%"=="%ROOT%" goto make
for %%F in ("%ROOT%\scripts\llama\*") do fc /b "%%F" "%INSTALLED%\llama\%%~nxF" >nul 2>&1 || goto make
set /p BACKEND=<"%INSTALLED%\backend"
if defined EDGESPEC_BACKEND if /i not "%BACKEND%"=="%EDGESPEC_BACKEND%" goto make
exit /b 0

:make
set "PYTHON="
set "CHECK=import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
if defined EDGESPEC_PYTHON set PYTHON="%EDGESPEC_PYTHON%"& call :check
if defined PYTHON goto found
if defined EDGESPEC_PYTHON echo EDGESPEC_PYTHON=%EDGESPEC_PYTHON% is not a Python 3.11 or newer. 1>&2& exit /b 1
set "PYTHON=py -3"& call :check
if defined PYTHON goto found
set "PYTHON=python"& call :check
if defined PYTHON goto found
echo edgespec needs Python 3.11 or newer, and none was found (tried py -3 and python). 1>&2
echo Install one from https://www.python.org/downloads/, or set EDGESPEC_PYTHON to it. 1>&2
exit /b 1

:found
%PYTHON% "%ROOT%\scripts\bootstrap.py" %1 <nul
exit /b %ERRORLEVEL%

:check
%PYTHON% -c "%CHECK%" >nul 2>&1 || set "PYTHON="
exit /b 0
